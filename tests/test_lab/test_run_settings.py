"""Settings of a run: the slice of the training set on which hyper-parameters are chosen."""

from pathlib import Path

import pytest
from mmengine.registry import DATASETS, init_default_scope

from lab.run_settings import hold_out_of_train
from mmkcr.engine.build import load_config

CONFIGS = Path(__file__).parents[2] / 'configs/kcr'
#: Config, and the training digits that it has.
TRAINED = {
    'digits/kcr-dense_vit-mini_1xb64_digits': range(1437),
    'ssl/kcr-moco-pretrain_vit-mini_1xb128_digits': range(1437),  # without labels, and no val
    'ssl/kcr-moco-linear_vit-mini_1xb32_digits': range(0, 1437, 14)}


@pytest.mark.parametrize('name', TRAINED)
def test_a_slice_of_the_training_digits(name, digits_root):
    """Measured on every fifth, trained on the others of those that the config has: no leak."""
    config = load_config(CONFIGS / f'{name}.py')
    loaders = [config[f'{part}_dataloader'] for part in ('train', 'val', 'test')
               if config.get(f'{part}_dataloader') is not None]
    for loader in loaders:
        loader.dataset.data_root = str(digits_root)
    hold_out_of_train(config)
    init_default_scope('mmpretrain')
    train, *held_out = [DATASETS.build(dict(loader.dataset, pipeline=[])) for loader in loaders]
    paths = {train.get_data_info(i)['img_path'] for i in range(len(train))}
    assert len(paths) == len([i for i in TRAINED[name] if i % 5])
    assert {Path(path).parent.name for path in paths} == set('0123456789')
    for part in held_out:
        other = {part.get_data_info(i)['img_path'] for i in range(len(part))}
        assert len(other) == 288 and not other & paths
        assert {Path(path).parts[-3] for path in other} == {'train'}
