"""What is caught of a layer is what it computed, whatever the host does with it behind it."""

import pytest
import torch
from timm.layers import Mlp
from timm.models.vision_transformer import ParallelThingsBlock, VisionTransformer
from torch import nn

from lab.kind_coverage import FAMILIES, randomise
from mmkcr.apis import compress
from mmkcr.closed_form import replay
from mmkcr.closed_form.replay import ResumableForward, catch_calls
from mmkcr.core.forward import flat_tensors


def test_an_activation_in_place_is_not_seen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    batches = [torch.randn(5, 6)]
    run = ResumableForward(model, model, batches, lambda network, batch: network(batch))
    found = catch_calls(run, 0, ['0', '2'])
    (inputs, outputs), = found['0']
    assert torch.equal(outputs, model[0](batches[0])) and float(outputs.detach().min()) < 0
    assert torch.equal(inputs, batches[0])


def test_what_is_given_again_is_not_changed():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))
    run = ResumableForward(model, model, [torch.randn(5, 4)], lambda network, batch: network(batch))
    expected = run.run(0)
    for block in '012':
        run.enter(block)
        for _ in range(2):
            assert torch.equal(run.run(0), expected)
    run.close()


@pytest.mark.parametrize('images', [3, 12])
def test_the_memory_of_a_record_is_counted_once(images, monkeypatch):
    """A count of all records at each new one takes a tenth of the time at 230 batches."""
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(2)))
    run = ResumableForward(model, model, [torch.randn(5, 3)] * images, nn.Module.__call__)
    counted = []
    monkeypatch.setattr(replay, 'flat_tensors',
                        lambda nest: counted.extend(flat_tensors(nest)) or flat_tensors(nest))
    run.record(['0', '1'])
    assert len(counted) == 2 * images


def test_a_forward_of_a_block_itself_is_put_back():
    """As ``accelerate`` gives a block."""
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    compute = model[0].forward
    model[0].forward = own = lambda x: 2 * compute(x)
    run = ResumableForward(model, model, [torch.randn(5, 3)], lambda network, batch: network(batch))
    expected = run.run(0)
    for block in '012':
        run.enter(block)
        assert torch.equal(run.run(0), expected)
    run.close()
    assert model[0].forward is own and 'forward' not in vars(model[1])


class Residual(nn.Module):
    """The shortcut is outside of the blocks, as in Conformer's."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 8, 8)
        self.first, self.second, self.third = (Mlp(16, 64) for _ in range(3))

    def forward(self, x):
        x = self.stem(x).flatten(2).mT
        for mlp in (self.first, self.second, self.third):
            x = x + mlp(x)
        return x


class Sets(nn.Module):
    """Blocks that are no modules that are called."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 8, 8)
        self.blocks = nn.ModuleList(nn.ModuleDict(dict(norm=nn.LayerNorm(16), mlp=Mlp(16, 64)))
                                    for _ in range(3))

    def forward(self, x):
        x = self.stem(x).flatten(2).mT
        for block in self.blocks:
            x = x + block['mlp'](block['norm'](x))
        return x


class Maps(nn.Module):
    """Layers behind the backbone read the outputs of several stages."""

    def __init__(self):
        super().__init__()
        self.backbone = FAMILIES['Swin'].build()
        self.heads = nn.ModuleList(nn.Conv2d(width, 4, 1) for width in (16, 32))

    def forward(self, x):
        return [head(out) for head, out in zip(self.heads, self.backbone(x))]


class Masked(nn.Module):
    """All blocks read a mask, which comes with the images or is computed from them."""

    def __init__(self, given):
        super().__init__()
        self.given, self.stem = given, nn.Conv2d(3, 16, 8, 8)
        self.blocks = nn.ModuleList(MaskedBlock() for _ in range(3))

    def forward(self, batch):
        images, mask = batch if self.given else (batch, None)
        x = self.stem(images).flatten(2).mT
        mask = x.mean(-1) > 0 if mask is None else mask
        for block in self.blocks:
            x = block(x, mask)
        return x


class MaskedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(16), Mlp(16, 64)

    def forward(self, x, mask):
        return x + self.mlp(self.norm(x)) * mask[..., None]


@pytest.mark.parametrize('given', [True, False])
def test_masks_are_those_of_whole_forwards(given):
    torch.manual_seed(0)
    model = Masked(given)
    batches = [torch.randn(4, 3, 32, 32) for _ in range(2)]
    if given:
        batches = [(batch, torch.rand(4, 16) > 0.5) for batch in batches]
    run = ResumableForward(model, model, batches, lambda network, batch: network(batch))
    expected = [run.run(number) for number in range(2)]
    for number in range(3):
        run.enter(f'blocks.{number}')
        assert all(torch.equal(run.run(number), out) for number, out in enumerate(expected))
    assert ('forward' in vars(model.blocks[0])) is given  # else everything is computed anew
    run.close()
    assert 'forward' not in vars(model.blocks[0])


def parallel():
    return VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2,
                             num_classes=4, block_fn=ParallelThingsBlock)


@pytest.mark.parametrize('build, kinds', [
    (Residual, ['mlp_hidden']), (Sets, ['mlp_hidden']), (parallel, ['mlp_hidden']),
    (Maps, ['mlp_hidden'])])
def test_refits_are_those_of_whole_forwards(build, kinds, monkeypatch):
    """Whatever the blocks read besides the outputs of the last one."""
    torch.manual_seed(0)
    model, found = randomise(build()).double(), []
    for _ in range(2):
        images = torch.randn(24, 3, 32, 32, generator=torch.Generator()).double()
        found.append(compress(model, images, '80%', kinds, (3, 32, 32), uniform=True,
                              probe_images=0, progress=False).model.state_dict())
        monkeypatch.setattr(ResumableForward, 'enter', lambda run, *_: run.close())
    # the outputs of a block whose last layer was refitted are not computed in the same order
    for key, value in found[0].items():
        torch.testing.assert_close(value, found[1][key], rtol=1e-8, atol=1e-10)
