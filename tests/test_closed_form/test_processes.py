"""Several processes are one: shares of the images, the same units and weights in each."""

import multiprocessing
import os
import socket

import pytest
import torch
from mmpretrain.models import VisionTransformer
from torch import nn

from mmkcr.closed_form.compression import compress_network
from mmkcr.closed_form.options import CompressOptions
from mmkcr.closed_form.progress import CompressProgress

IMAGES = torch.randn(23, 3, 32, 32, generator=torch.Generator().manual_seed(0))
OPTIONS = CompressOptions(target='70%', input_shape=(3, 32, 32), divisor=1)


def vit():
    torch.manual_seed(0)
    model = VisionTransformer(
        arch=dict(embed_dims=24, num_layers=2, num_heads=4, feedforward_channels=48), img_size=32,
        patch_size=8, out_type='featmap')
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    model.eval()
    return model


def compressed(folder=None):
    done = None if folder is None else CompressProgress(folder, dict(target='70%'))
    return compress_network(vit(), IMAGES, OPTIONS, done=done)


def saved(result):
    return dict(state=result.model.state_dict(), sites={
        name: site.kept for name, site in result.structure.sites.items()},
        ridges=result.structure.provenance['ridges'], agreement=result.agreement)


def work(folder, port, rank):
    """A process: a whole call, and one that goes on with the work of another number of them."""
    os.environ.update(  # as torchrun sets them
        WORLD_SIZE='2', LOCAL_WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port),
        OMP_NUM_THREADS='1', RANK=str(rank), LOCAL_RANK=str(rank))
    whole, rest = compressed(), compressed(folder / 'killed')
    torch.save([saved(whole), saved(rest)], folder / f'{rank}.pth')
    torch.distributed.destroy_process_group()


@pytest.fixture(scope='module')
def results(tmp_path_factory):
    """Of one process, and of two: whole calls, and calls that went on behind the first block."""
    folder = tmp_path_factory.mktemp('processes')
    save, blocks = CompressProgress.save_block, []

    def killed(self, block, *rest):
        if blocks:
            raise KeyboardInterrupt
        blocks.append(block)
        save(self, block, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompressProgress, 'save_block', killed)
        with pytest.raises(KeyboardInterrupt):
            compressed(folder / 'killed')
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context('fork')  # importing takes seconds
    running = [fork.Process(target=work, args=(folder, port, rank)) for rank in range(2)]
    for process in running:
        process.start()
    for process in running:
        process.join()
    assert [process.exitcode for process in running] == [0, 0]
    return saved(compressed()), [torch.load(folder / f'{rank}.pth') for rank in range(2)]


@pytest.mark.parametrize('rank', [0, 1])
@pytest.mark.parametrize('call', [0, 1])
def test_two_processes_give_what_one_gives(results, rank, call):
    one, of_rank = results
    found = of_rank[rank][call]
    assert found['sites'] == one['sites'] and found['ridges'] == one['ridges']
    assert found['state'].keys() == one['state'].keys()
    for name, value in one['state'].items():
        torch.testing.assert_close(found['state'][name], value, rtol=0, atol=1e-5, msg=name)
    for name, value in one['agreement'].items():
        assert found['agreement'][name] == pytest.approx(value, rel=1e-4)


def test_processes_agree_bit_for_bit(results):
    _, (first, second) = results
    for one, two in zip(first, second):
        assert all(torch.equal(value, two['state'][name]) for name, value in one['state'].items())
