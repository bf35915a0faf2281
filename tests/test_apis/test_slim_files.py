"""Weights and structure of a subnet belong together, whenever the process is killed."""

import os

import pytest
import torch
from torch import nn

from mmkcr.apis.slim_files import write_subnet
from mmkcr.core import SiteEntry, Structure, write_tensors


def structure(kept):
    return Structure(dict(type='mmkcr.Searchable'), {'layer.mlp_hidden': SiteEntry(8, kept)})


@pytest.mark.parametrize('last', ['subnet.pth', 'structure.json'])
def test_one_rename_decides(tmp_path, monkeypatch, last):
    """The file of weights is old or new as a whole, with its own structure."""
    write_subnet(nn.Linear(2, 8), structure(list(range(8))), {}, tmp_path)
    rename = os.replace

    def killed(source, target):
        if target.name == last:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, 'replace', killed)
    with pytest.raises(KeyboardInterrupt):
        write_subnet(nn.Linear(2, 3), structure([1, 4, 6]), {}, tmp_path)
    found = Structure.load(tmp_path / 'subnet.pth').sites['layer.mlp_hidden'].kept
    weights = torch.load(tmp_path / 'subnet.pth', weights_only=True)['state_dict']['weight']
    assert len(found) == len(weights) == (8 if last == 'subnet.pth' else 3)


def test_a_full_disk_is_an_error_of_the_system(tmp_path):
    (tmp_path / 'full').symlink_to('/dev/full')
    with pytest.raises(OSError, match='No space left'):
        write_tensors(dict(weight=torch.ones(9)), tmp_path / 'full')
