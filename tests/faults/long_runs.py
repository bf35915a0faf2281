"""Resident memory of long searches: one of every method on a small network, start to end.

    python tests/faults/long_runs.py --iterations 5000 --out long_runs.json
    python tests/faults/long_runs.py --iterations 5000 --minutes 10 --runs kcr

Each search trains in a process of its own, with averages, validations and checkpoints. Memory is
read after every iteration; its median over the last tenth is compared with that over the second
tenth, when everything has been built. Ends with status 1 if it has grown by more than
``--tolerance``.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path[:0] = [str(Path(__file__).parents[2] / 'tools'),
                str(Path(__file__).parents[1] / 'test_engine')]

#: Of all: two images at a time, whose arithmetic costs least.
SMALL = {'train_dataloader.num_workers': 0, 'train_dataloader.persistent_workers': False,
         'train_dataloader.batch_size': 2, 'default_hooks.logger.interval': 10}
FEW = {'train_dataloader.dataset.indices': list(range(0, 1437, 15)),
       'val_dataloader.dataset.indices': list(range(16)),
       'visualizer.vis_backends': [dict(type='LocalVisBackend')]}
#: By method: a job of train_jobs.py, and iterations of an epoch where it counts epochs.
RUNS = dict(
    kcr=(dict(kind='iterated_search', options={'custom_hooks.3.interval': 50}), None),
    dcs=(dict(config='configs/dcs/digits/dcs-search_efficientvit-mini_1xb64_digits.py',
              options=FEW), 33),
    ofb=(dict(kind='pruning', options={'custom_hooks.4.interval': 50}), 36),
    dwconv=(dict(config='configs/dwconv/digits/dwconv-search_vit-octo_1xb64_digits.py',
                 options=FEW), 33))
SAMPLES = 50


def resident():
    """Bytes of this process in memory; pages of files, which the system takes, do not count."""
    _, whole, shared = Path('/proc/self/statm').read_text().split()[:3]
    return (int(whole) - int(shared)) * os.sysconf('SC_PAGE_SIZE')


def length(per_epoch, iterations):
    """Options for a run of so many iterations that validates and saves ten times."""
    if per_epoch is None:
        return {'train_cfg.max_iters': iterations, 'train_cfg.val_interval': iterations // 10,
                'default_hooks.checkpoint.interval': iterations // 10}
    epochs = -(-iterations // per_epoch)
    return {'train_cfg.max_epochs': epochs, 'train_cfg.val_interval': max(1, epochs // 10),
            'default_hooks.checkpoint.interval': max(1, epochs // 10),
            'default_hooks.checkpoint.max_keep_ckpts': 2}


class EnoughError(Exception):
    """The time is over."""


def measure(name, iterations, minutes, folder, data_root):
    """Memory of one search of at most so many iterations, none of which begins later than that.

    Gives ``iterations`` that were run, some ``megabytes`` by iteration, ``growth`` (a share) and
    ``seconds``.
    """
    import train_jobs
    from mmengine.hooks import Hook
    from mmengine.runner import Runner
    job, per_epoch = RUNS[name]
    options = {**SMALL, **job.get('options', {}), **length(per_epoch, iterations)}
    began, found = time.time(), {}

    class Meter(Hook):
        priority = 'LOWEST'

        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            step = runner.iter + 1
            found[step] = resident()
            if time.time() > began + 60 * minutes:
                raise EnoughError

    build = Runner.from_cfg

    def from_cfg(config):
        runner = build(config)
        runner.register_hook(Meter())
        return runner

    Runner.from_cfg = from_cfg
    try:
        train_jobs.train(dict(job, options=options, work_dir=f'{folder}/{name}',
                              data_root=str(data_root)))
    except EnoughError:
        pass
    done = max(found)
    early = median(value for step, value in found.items() if .1 * done <= step <= .2 * done)
    late = median(value for step, value in found.items() if step >= .9 * done)
    return dict(iterations=done, growth=late / early - 1, seconds=round(time.time() - began),
                megabytes={step: round(found[step] / 1e6, 1)
                           for step in sorted(found)[::max(1, done // SAMPLES)]})


def in_child(*args):
    """:func:`measure` in a process of its own, whose output goes to a file beside the run."""
    import multiprocessing
    with multiprocessing.get_context('spawn').Pool(1, _quiet, (str(args[3]), )) as pool:
        return pool.apply(measure, args)


def _quiet(folder):
    log = os.open(f'{folder}/output.txt', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)


def main():
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--iterations', type=int, default=5000)
    parser.add_argument('--minutes', type=float, default=float('inf'), help='of each search')
    parser.add_argument('--runs', nargs='+', choices=sorted(RUNS), default=list(RUNS))
    parser.add_argument('--tolerance', type=float, default=0.03, help='share of growth')
    parser.add_argument('--out', type=Path, help='JSON file')
    args = parser.parse_args()
    folder, results = Path(tempfile.mkdtemp(prefix='long_runs_')), {}
    from lab.digits import write_digits
    write_digits(folder / 'digits')
    for name in args.runs:
        found = results[name] = in_child(name, args.iterations, args.minutes, folder,
                                         folder / 'digits')
        print(f'{name}: {found["iterations"]} iterations, {found["growth"]:+.2%}, '
              f'{found["seconds"]} s', flush=True)
        if args.out:
            args.out.write_text(json.dumps(results, indent=1) + '\n')
    sys.exit(any(found['growth'] > args.tolerance for found in results.values()))


if __name__ == '__main__':
    main()
