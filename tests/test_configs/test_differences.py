"""Numbers in the lists of differences from the papers are those of the resolved configs."""

import inspect
import re

import pytest
from config_files import ROOT, rows_of, task_of

from mmkcr.engine.build import load_config
from mmkcr.registry import MODELS

KCR, DCS, OFB, DWCONV = 'kcr', 'dcs', 'ofb', 'dwconv'
_NUMBER = re.compile(r'(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?')
_CELLS = re.compile(r'^\|(.*)\|$', re.M)


def listed(method):
    """Rows of a method's list by what they are about; each has its cells by heading."""
    page = (ROOT / 'configs' / method / 'README.md').read_text()
    table = page.split('## Where ours differs')[1].split('\n## ')[0]
    head, _, *rows = [[cell.strip() for cell in line.split(' | ')]
                      for line in _CELLS.findall(table)]
    return {row[0]: dict(zip(head, row)) for row in rows}


def numbers(text):
    """All numbers of a cell, in order."""
    return [float(number) for number in _NUMBER.findall(text)]


def config(path):
    return load_config(ROOT / 'configs' / path)


def hook(found, **attributes):
    """The hook of a config with some attributes."""
    one, = (hook for hook in found.custom_hooks
            if all(hook.get(key) == value for key, value in attributes.items()))
    return one


def default(kind, name):
    """A default of a class, by its signature."""
    return inspect.signature(MODELS.get(kind)).parameters[name].default


SEARCH = {DCS: 'dcs/search/dcs-search_mobilevit-small_8xb64_in1k-100.py',
          KCR: 'kcr/search/kcr-search_swin-tiny_8xb64_in1k-100.py',
          OFB: 'ofb/search/ofb-search_deit-small_8xb128_in1k.py'}
RETRAIN = {DCS: 'dcs/retrain/dcs-retrain_mobilevit-small_8xb64_in1k.py',
           KCR: 'kcr/retrain/kcr-retrain_swin-tiny_8xb64_in1k.py',
           OFB: 'ofb/retrain/ofb-retrain_deit-small_1700m_8xb128_in1k.py'}
UPERNET = 'kcr/segmentation/kcr-upernet_swin-base_dense_8xb2_ade20k{}.py'


def weights_of(found):
    return found.optim_wrapper.get('weights', found.optim_wrapper)


def augmented(found):
    """Views of an image in an epoch: three by the host's sampler, else one."""
    return 3 if found.train_dataloader.sampler.type == 'RepeatAugSampler' else 1


def drop_path(path):
    backbone = task_of(config(path)).backbone
    return backbone.get('backbone', backbone).drop_path_rate


def ofb_search():
    return config(SEARCH[OFB])


def distillation():
    term = config('dcs/retrain/dcs-retrain_efficientvit-b1_kd_8xb64_in1k.py').model.regularizers.kd
    return [term.temperature, term.weight, term.input_size]


#: By method, row and column: the numbers of the resolved configs, in the order of the cell.
CASES = {
    (OFB, 'weight decay of the weights', 'Ours'): lambda: [
        weights_of(ofb_search()).optimizer.weight_decay, 0],
    (OFB, 'weight decay of alpha and S', 'Ours'): lambda: [
        ofb_search().optim_wrapper.architecture.weight_decay],
    (OFB, 'betas of alpha and S', 'Ours'): lambda: list(
        ofb_search().optim_wrapper.architecture.betas),
    # ours are the public code's
    (OFB, 'w(t)', 'Public code'): lambda: [
        hook(ofb_search(), attribute='importance_weight').start,
        hook(ofb_search(), attribute='importance_weight').end,
        hook(ofb_search(), attribute='importance_weight').share * ofb_search().train_cfg.max_epochs
    ],
    # ours are the paper's
    (OFB, 'share of masked patches', 'Paper'): lambda: [
        100 * hook(ofb_search(), attribute='mask_ratio').start,
        100 * hook(ofb_search(), attribute='mask_ratio').end],
    (OFB, 'batch and rate of the search', 'Ours'): lambda: [
        8 * ofb_search().train_dataloader.batch_size, weights_of(ofb_search()).optimizer.lr],
    (OFB, 'decision of all sizes', 'Ours'): lambda: [
        100 * hook(ofb_search(), type='mmkcr.ProgressivePruningHook').share],
    (DCS, 'image size of MobileViT', 'Ours'): lambda: [
        config(SEARCH[DCS]).model.price.input_shape[-1]],
    (DCS, 'temperature of the mask in the retraining', 'Ours'): lambda: [
        default('mmkcr.QKMask', 'temperature')],
    (DCS, "distillation: T, weight, teacher's image size", 'Ours'): distillation,
    (DCS, 'averaged weights', 'Ours'): lambda: [1, hook(
        config(RETRAIN[DCS]), type='EMAHook').momentum],
    (KCR, 'eta', 'Ours'): lambda: [config(RETRAIN[KCR]).model.regularizers.kcr.weight],
    (KCR, 't_warm of the search', 'Ours'): lambda: [hook(
        config(SEARCH[KCR]), type='mmkcr.WarmupSwitchHook').begin],
    (KCR, 'averaged weights', 'Ours'): lambda: [1, hook(
        config(RETRAIN[KCR]), type='EMAHook').momentum],
    (KCR, 'dropout, stochastic depth', 'Paper'): lambda: [drop_path(UPERNET.format(''))],
    (KCR, 'dropout, stochastic depth', 'Ours'): lambda: [
        drop_path(UPERNET.format('')), drop_path(UPERNET.format('-640x640')), 640],
}


@pytest.mark.parametrize('case', CASES, ids=' '.join)
def test_a_number_of_a_list_is_that_of_the_config(case):
    method, row, column = case
    assert numbers(listed(method)[row][column]) == pytest.approx(CASES[case]())


def test_words_of_the_list_of_once_for_both():
    """Repeated augmentation and mixing, in the search and in the retraining."""
    search, retrain = ofb_search(), config(RETRAIN[OFB])
    rows = listed(OFB)
    assert rows['mixup, cutmix']['Ours'] == 'off in both'
    assert not [found for found in (search, retrain) if task_of(found).get('train_cfg')]
    assert rows['repeated augmentation']['Ours'] == \
        'three views in the retraining of DeiT, none in the search'
    assert [augmented(search), augmented(retrain)] == [1, 3]


def test_hours_of_headers_are_those_of_one_gpu():
    """KCR v2, table 9: 300 epochs of 33.5 minutes are 167.5 hours, on one."""
    headers = [path.read_text() for method in (KCR, DCS) for name in ('search', 'retrain')
               for path, _ in rows_of(method, name).values()]
    hours = [line for text in set(headers) for line in text.splitlines() if ' hours ' in line]
    assert len(hours) == 8 and all('hours on one A100' in line for line in hours)
