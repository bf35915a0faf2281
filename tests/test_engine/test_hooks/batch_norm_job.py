"""Two processes with parts of a batch, for the test of batch norms: argument 1 is the output."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from mmkcr.engine.hooks.sync_batch_norm import synchronize


class Doubled(nn.BatchNorm2d):
    """With a forward of its own around the host's."""

    def forward(self, x):
        return 2 * super().forward(x)


def run(layer, batch, size):
    """Output, statistics and gradients of three steps and an evaluation on (part of) a batch."""
    seen, layer = {}, layer.train()
    for step in range(3):
        x = batch[step].clone().requires_grad_()
        out = layer(x)
        shape = out.shape[1:]
        weight = torch.arange(shape.numel(), dtype=out.dtype).view(shape).sin()
        layer.zero_grad()
        ((out * weight).square().sum() / size).backward()
        seen.update({f'out{step}': out.detach(), f'grad{step}': x.grad})
        seen.update({f'{name}{step}': p.grad.clone() for name, p in layer.named_parameters()})
    seen['eval'] = layer.eval()(batch[0])
    return {**seen, **{name: value.clone() for name, value in layer.named_buffers()}}


def cases():
    generator = torch.Generator().manual_seed(0)
    for name, layer, shape in (
            ('maps', nn.BatchNorm2d(4), (6, 4, 3, 5)), ('vectors', nn.BatchNorm1d(4), (6, 4)),
            ('plain', nn.BatchNorm2d(4, affine=False, momentum=None), (6, 4, 2, 2)),
            ('no_statistics', nn.BatchNorm2d(4, track_running_stats=False), (6, 4, 2, 2)),
            ('nothing', nn.BatchNorm2d(4), (6, 4, 3, 5)),
            ('subclass', Doubled(4, eps=1e-2, momentum=0.3), (6, 4, 3, 5))):
        for parameter in layer.parameters():
            nn.init.normal_(parameter, 1, 0.3, generator=generator)
        yield name, layer.double(), torch.randn(3, *shape, generator=generator).double() * 3 + 5


if __name__ == '__main__':
    torch.distributed.init_process_group('gloo')
    rank, found = torch.distributed.get_rank(), {}
    for name, layer, batch in cases():
        handles = synchronize(layer)
        here = 6 if name == 'nothing' else 4  # the others there
        found[name] = run(layer, batch[:, :here] if rank == 0 else batch[:, here:], 6)
        for handle in handles:
            handle.remove()
        assert not F.batch_norm.__dict__ and not layer._forward_hooks
    torch.save(found, f'{sys.argv[1]}/{rank}.pth')
