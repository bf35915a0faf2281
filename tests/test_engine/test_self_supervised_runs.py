"""MoCo v3 and MOCA searches: a resumed run is an unbroken one, and two processes are one."""

import pytest

# see test_distributed.py
SGD = dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=0.01, _delete_=True)
OPTIONS = {'train_cfg.max_epochs': 2,
           'train_dataloader.dataset.indices': list(range(0, 1400, 50)),
           'default_hooks.ema': dict(type='EMAHook', momentum=0.1),
           'default_hooks.logger.interval': 1, 'custom_hooks.1.begin': 1,
           'visualizer.vis_backends': [dict(type='LocalVisBackend')],
           'optim_wrapper.weights.optimizer': SGD, 'optim_wrapper.architecture.optimizer': SGD}
#: Options, and what was updated once an iteration.
KINDS = dict(
    moco=(OPTIONS, ['momentum_encoder.steps']),
    # with a ratio of 0 masks, which each process draws, change the order alone
    moca=({**OPTIONS, 'model.architecture.mask_ratios': [0.], 'model.architecture.decoded': [1.],
           'model.architecture.codebook.words': 12, 'model.architecture.codebook.new_words': 4},
          ['teacher.steps', 'codebook.steps']))


def job_of(kind, processes=1, **options):
    """With one global batch; in fp64, so that no choice of a word flips by rounding."""
    return dict(config=f'configs/kcr/ssl/kcr-{kind}-search_vit-mini_1xb128_digits.py',
                precise=True, processes=processes, options={
                    **KINDS[kind][0], 'train_dataloader.batch_size': 8 // processes, **options})


@pytest.mark.parametrize('kind', KINDS)
def test_a_resumed_run_is_the_unbroken_one(kind, finished, same_runs, moved):
    unbroken = finished(job_of(kind))
    whole, values = same_runs(unbroken, finished(
        dict(job_of(kind, load_from=f'{unbroken}/epoch_1.pth'), resume=True)))
    assert {'train/loss', 'train/loss_kcr', 'train/loss_price'} <= values.keys()
    backbone = {name: value for name, value in whole['state_dict'].items()
                if name.startswith('backbone.')}
    assert moved(backbone, 'alpha') == 4
    for name in KINDS[kind][1]:
        assert int(whole['ema_state_dict'][f'module.{name}']) == whole['meta']['iter']


@pytest.mark.parametrize('kind', KINDS)
def test_two_processes_are_one(kind, finished, close_runs):
    close_runs(finished(job_of(kind)), finished(job_of(kind, processes=2)))
