"""Weights and structure of a subnet belong together, whenever the process is killed."""

import os
import re
import shlex

import pytest
import torch
from mmengine.config import Config
from torch import nn

from mmkcr.apis.slim_files import SubnetFiles, config_text, write_subnet
from mmkcr.cli.compress import next_steps
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


@pytest.mark.parametrize('name', ['slim', "O'Brien", 'an "other" one', """'" '\'\' "" '"""])
def test_files_in_a_folder_of_any_name(tmp_path, name):
    """The config, which is Python, finds its weights, and commands are for a shell."""
    folder = tmp_path / name
    folder.mkdir()
    config = Config(dict(load_from='{{ fileDirname }}/subnet.pth', model=dict(
        structure='{{ fileDirname }}/structure.json')))
    (folder / 'config.py').write_text(config_text(config))
    read = Config.fromfile(folder / 'config.py')
    assert read.load_from == f'{folder}/subnet.pth'
    assert read.model.structure == f'{folder}/structure.json'
    files = SubnetFiles.__new__(SubnetFiles)
    files.folder, files.parts = folder, {}
    commands = [shlex.split(text) for text in re.findall(r'`(mmkcr (?:(?! `|`[,.]| \().)*)`',
                                                         next_steps(files))]
    assert [words[2] for words in commands] == [str(folder / 'config.py')] * 3
