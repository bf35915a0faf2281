"""`mmkcr search --init`: shipped searches that begin with the scores of `mmkcr compress`."""

from pathlib import Path

import pytest
import torch
from mmengine.runner import save_checkpoint

from mmkcr.engine.build import build_model, load_config
from mmkcr.methods.search.start import load_scores

CONFIGS = Path(__file__).parents[2] / 'configs'


@pytest.fixture
def scored(run_tool, data, tmp_path):
    """``scored(config, *kinds)``: the file of the scores of a dense network of random weights."""

    def run(config, *kinds):
        model = build_model(load_config(config))
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape)
        save_checkpoint(dict(state_dict=model.state_dict()), str(tmp_path / 'dense.pth'))
        run_tool('compress', config, tmp_path / 'dense.pth', '--target-macs', '95%', '--sites',
                 *kinds, '--images', 16, '--out', tmp_path / 'scores', *data)
        return tmp_path / 'scores/sensitivity.json'

    return run


@pytest.fixture
def begun(run_tool, data, tmp_path, forget_runs):
    """``begun(config, scores)``: state of a search of one epoch; rates of 0 keep the gates."""

    def run(config, scores, *rates):
        forget_runs()
        run_tool('search', config, '--init', scores, '--work-dir', tmp_path / 'search', *data,
                 f'load_from={tmp_path / "dense.pth"}', 'train_cfg.max_epochs=1',
                 *(f'optim_wrapper.{rate}=0.' for rate in rates), 'param_scheduler=[]',
                 'train_dataloader.dataset.indices=64', 'train_dataloader.batch_size=16',
                 'val_dataloader.dataset.indices=16')
        return torch.load(tmp_path / 'search/epoch_1.pth', weights_only=False)['state_dict']

    return run


TWO = ['weights.optimizer.lr', 'architecture.optimizer.lr']


@pytest.mark.parametrize('method, model, kinds, logits, rates', [
    ('kcr', 'vit-mini', ['mlp_channels'], 'alpha', TWO),
    ('dcs', 'mobilevit-mini', ['mlp_channels'], 'alpha', TWO),
    ('ofb', 'vit-mini', ['mlp_hidden', 'head_channels'], 'importance',
     ['optimizer.lr', 'architecture.lr'])])
def test_units_begin_in_the_order_of_their_scores(method, model, kinds, logits, rates, scored,
                                                  begun):
    """But the channels of heads, whose scores are about rotated ones."""
    dense, search = (CONFIGS / f'{method}/digits/{method}-{stage}_{model}_1xb64_digits.py'
                     for stage in ('dense', 'search'))
    scores = scored(dense, *kinds)
    state = begun(search, scores, *rates)
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
