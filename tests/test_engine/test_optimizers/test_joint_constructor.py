"""Parameter groups of a search without a split."""

import pytest
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS

from mmkcr.engine.build import build_model, load_config


@pytest.fixture
def model():
    return build_model(load_config('configs/ofb/digits/ofb-search_vit-mini_1xb64_digits.py'))


def groups(model, **architecture):
    config = dict(optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.99)))
    if architecture:
        config['architecture'] = architecture
    constructor = OPTIM_WRAPPER_CONSTRUCTORS.build(dict(
        type='mmkcr.JointOptimWrapperConstructor', optim_wrapper_cfg=config))
    found = constructor(model).optimizer.param_groups
    held = [id(p) for group in found for p in group['params']]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    return found


def test_gates_have_a_group_of_their_own(model):
    *_, gates = groups(model)
    assert {id(p) for p in gates['params']} == {id(p) for p in model.gate_parameters()}
    assert gates['betas'] == (0.5, 0.999) and gates['weight_decay'] == 0
    assert groups(model, lr=0.1)[-1]['lr'] == 0.1


def test_importance_apart_as_in_the_public_code(model):
    *_, alpha, importance = groups(model, weight_decay=1e-3,
                                   importance=dict(betas=(0.9, 0.999), weight_decay=0.))
    gates = model.gates().values()
    assert {id(p) for p in alpha['params']} == {id(gate.alpha) for gate in gates}
    assert {id(p) for p in importance['params']} == {id(gate.importance) for gate in gates}
    assert alpha['betas'] == (0.5, 0.999) and alpha['weight_decay'] == 1e-3
    assert importance['betas'] == (0.9, 0.999) and importance['weight_decay'] == 0
