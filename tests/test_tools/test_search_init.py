"""`mmkcr search --init`: a shipped search that begins with the scores of `mmkcr compress`."""

import json
from pathlib import Path

import torch
from mmengine.runner import save_checkpoint

from mmkcr.apis.build import build_model, load_config
from mmkcr.models.gates.start import load_scores

CONFIGS = Path(__file__).parents[2] / 'configs/dwconv/digits'


def test_blocks_that_lose_least_are_replaced_first(load_tool, small_digits, tmp_path, forget_runs):
    """The dense network is scored, then searched; rates of 0 keep what gates begin with."""
    dense, search = (str(CONFIGS / f'dwconv-{stage}_vit-octo_1xb64_digits.py')
                     for stage in ('dense', 'search'))
    model = build_model(load_config(dense))
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape)
    save_checkpoint(dict(state_dict=model.state_dict()), str(tmp_path / 'dense.pth'))
    data = [f'{part}_dataloader.{key}' for part in ('train', 'val', 'test')
            for key in (f'dataset.data_root={small_digits}', 'num_workers=0',
                        'persistent_workers=False')]
    load_tool('compress').main([dense, str(tmp_path / 'dense.pth'), '--target-macs', '95%',
                                '--sites', 'head_operator', '--images', '16', '--out',
                                str(tmp_path / 'scores'), '--cfg-options', *data])
    path = tmp_path / 'scores/sensitivity.json'
    known = json.loads(path.read_text())
    # a known order of the blocks, apart enough that heads do not mix: the third loses least
    wanted = [2, 5, *(place for place in range(len(known)) if place not in (2, 5))]
    for place, entry in enumerate(known.values()):
        losses = torch.linspace(1, 0, len(entry['losses'])).double() * 10**wanted.index(place)
        entry['losses'] = losses.tolist()
    path.write_text(json.dumps(known))
    forget_runs()
    load_tool('search').main([search, '--init', str(path), '--work-dir', str(tmp_path / 'search'),
                              '--cfg-options', f'load_from={tmp_path / "dense.pth"}',
                              'train_cfg.max_epochs=1', 'optim_wrapper.optimizer.lr=0.',
                              'param_scheduler=[]', 'train_dataloader.dataset.indices=64',
                              'val_dataloader.dataset.indices=16', *data])
    state = torch.load(tmp_path / 'search/epoch_1.pth', weights_only=False)['state_dict']
    alphas = torch.cat([state[f'backbone.{name}.gate.alpha'] for name in load_scores(path)])
    assert alphas.argsort(descending=True).tolist() == wanted
    # as the hard choice of the saved search says, too: four blocks become convolutions
    model = build_model(load_config(search))
    model.architecture.load_state_dict(state, strict=False)
    chosen = [place for place, gate in enumerate(model.gates().values())
              if not len(gate.eval().selection())]
    assert chosen == sorted(wanted[:4])
