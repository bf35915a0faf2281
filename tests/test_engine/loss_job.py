"""Two processes with parts of a batch, for the test of losses: argument 1 is the output."""

import sys

import torch
from torch import nn

import mmkcr.engine.registered  # noqa: F401
from mmkcr.methods.kcr.kernel_complexity import KernelComplexityLoss
from mmkcr.models.losses import FeatureDistillationLoss


class Task(nn.Module):
    """A task model of nothing but a backbone."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, x):
        return self.backbone(x)


def complexity(form):
    net = nn.Linear(6, 8).double()
    loss = KernelComplexityLoss(8, scale_free=True, form=form,
                                num_samples=12 if form == 'sample' else None).double()
    loss.refresh_from_features(torch.randn(12, 8))
    return net, lambda x, indices: loss(net(x), indices)


def distillation():
    student, teacher = (Task(nn.Linear(6, 8).double()) for _ in range(2))
    loss = FeatureDistillationLoss(dict())
    loss.teacher._model = teacher
    loss.bind(student)

    def value(x, _):
        with loss.watch():
            student(x)
        return loss(x, x)

    return student, value


CASES = dict(scale_free=lambda: complexity('projection'), sample=lambda: complexity('sample'),
             distillation=distillation)


def run(part):
    """Values and gradients of every loss on (part of) a batch, whose images differ in scale."""
    found = {}
    for name, make in CASES.items():
        torch.manual_seed(0)
        net, loss = make()
        batch = torch.randn(6, 6).double() * torch.arange(1, 7)[:, None]
        value = loss(batch[part], torch.arange(6)[part])
        value.backward()
        found[name] = (value.detach(), [p.grad for p in net.parameters()])
    return found


if __name__ == '__main__':
    torch.distributed.init_process_group('gloo')
    rank = torch.distributed.get_rank()
    torch.save(run(slice(0, 3) if rank == 0 else slice(3, 6)), f'{sys.argv[1]}/{rank}.pth')
    torch.distributed.destroy_process_group()
