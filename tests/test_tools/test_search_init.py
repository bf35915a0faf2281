"""`mmkcr search --init`: shipped searches that begin with the scores of `mmkcr compress`."""

from pathlib import Path

import pytest
import torch

from mmkcr.methods.search.search_model import load_scores

CONFIGS = Path(__file__).parents[2] / 'configs'


@pytest.mark.parametrize('method, kinds, logits, rates', [
    ('kcr', ['mlp_channels'], 'alpha', ['weights.optimizer.lr', 'architecture.optimizer.lr']),
    ('ofb', ['mlp_hidden', 'head_channels'], 'importance', ['optimizer.lr', 'architecture.lr'])])
def test_units_begin_in_the_order_of_their_scores(method, kinds, logits, rates, run_tool, data,
                                                  make_checkpoint, tmp_path):
    """But the channels of heads, whose scores are about rotated ones; rates of 0 keep the gates."""
    dense, search = (CONFIGS / f'{method}/digits/{method}-{stage}_vit-mini_1xb64_digits.py'
                     for stage in ('dense', 'search'))
    checkpoint, scores = make_checkpoint(dense), tmp_path / 'scores/sensitivity.json'
    run_tool('compress', dense, checkpoint, '--target-macs', '95%', '--sites', *kinds,
             '--images', 16, '--out', tmp_path / 'scores', *data)
    run_tool('search', search, '--init', scores, '--work-dir', tmp_path / 'search', *data,
             f'load_from={checkpoint}', 'train_cfg.max_epochs=1',
             *(f'optim_wrapper.{rate}=0.' for rate in rates), 'param_scheduler=[]',
             'train_dataloader.dataset.indices=64', 'train_dataloader.batch_size=16',
             'val_dataloader.dataset.indices=16')
    state = torch.load(tmp_path / 'search/epoch_1.pth', weights_only=False)['state_dict']
    for name, (order, _) in load_scores(scores).items():
        values = state[f'backbone.{name}.gate.{logits}']
        # Once for Both slices while it trains
        left = state.get(f'backbone.{name}.gate.kept', torch.arange(len(order)))
        same = left[values.argsort(descending=True)].tolist() == [
            unit for unit in order.tolist() if unit in left]
        assert same == (not name.endswith('.head_channels')), name
    assert {name.rpartition('.')[2] for name in load_scores(scores)} == set(kinds)


def test_a_subnet_is_not_searched(refused, tmp_path):
    structure = CONFIGS / 'structures/kcr-search_vit-small_8xb64_in1k-100.json'
    (tmp_path / 'subnet.py').write_text(
        f"_base_ = {str(CONFIGS / 'kcr/search/kcr-search_vit-small_8xb64_in1k-100.py')!r}\n"
        f'compression = dict(_delete_=True, sites="own", structure={str(structure)!r})\n')
    assert 'search on the config of its dense network' in refused('search', tmp_path / 'subnet.py')
