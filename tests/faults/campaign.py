"""Kills and changed files, as many as asked for, with counts.

    python tests/faults/campaign.py --kills 200 --files 10000 --out faults.json
    python tests/faults/campaign.py --kills 200 --files 0 --minutes 60
    python tests/faults/campaign.py --kills 0 --files 0 --folders 500

Training runs of every method and task are killed at random moments and resumed, until they end;
then all weights, averages and logged values are those of a run that was not killed. Changed files
are read, see mutations.py; so are folders with one changed file, see folders.py. Ends with status 1
if anything was lost or let in.
"""

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
KILLED = (-9, 128 + 15)  # by SIGKILL; after SIGTERM, when all is saved
#: Six iterations an epoch, of shipped configs, and few samples to judge by.
DIGITS = {'train_dataloader.dataset.indices': list(range(0, 1437, 15)),
          'train_dataloader.batch_size': 16, 'val_dataloader.dataset.indices': list(range(16)),
          'train_cfg.max_epochs': 4, 'train_cfg.val_interval': 1,
          'default_hooks.logger.interval': 1, 'default_hooks.checkpoint.interval': 1,
          'visualizer.vis_backends': [dict(type='LocalVisBackend')]}
SCENES = {**DIGITS, 'train_dataloader.dataset.indices': list(range(12)),
          'train_dataloader.batch_size': 2, 'val_dataloader.dataset.indices': list(range(4)),
          'train_cfg.max_epochs': 2}
MASKED = dict(config='configs/dcs/digits/dcs-retrain_efficientvit-mini_1xb64_digits.py', options={
    **DIGITS, 'model.architecture.backbone.structure': None,
    'model.architecture.backbone.outputs': False})
#: Jobs of train_jobs.py by name. Epochs and iterations, two workers or none,
#: averages (`EMAHook`), accumulated gradients (iterations), one and two processes, batch norms
#: (resnet_pruning, DCS), every method (KCR, DCS with masks, Once for Both, gates of heads
#: that become convolutions) and both dense tasks; configs of this project among them.
RUNS = dict(
    search=dict(kind='search'),
    search_alone=dict(kind='search', options={
        'train_dataloader.num_workers': 0, 'train_dataloader.persistent_workers': False}),
    retrain=dict(kind='retrain'),
    iterations=dict(kind='iterations'),
    iterated_search=dict(kind='iterated_search'),
    masked_search=dict(config='configs/dcs/digits/dcs-search_mobilevit-mini_1xb64_digits.py',
                       options=DIGITS),
    masked_retrain=MASKED,
    pruning=dict(kind='pruning'),
    resnet_pruning=dict(kind='resnet_pruning'),
    segmentation=dict(kind='segment_search'),
    detection=dict(config='configs/kcr/detection/kcr-mask-rcnn_swin-mini_search_1xb8_digit-'
                   'scenes.py', options=SCENES),
    shipped_kcr=dict(config='configs/kcr/digits/kcr-search_vit-mini_1xb64_digits.py',
                     options=DIGITS),
    shipped_dwconv=dict(config='configs/dwconv/digits/dwconv-search_vit-octo_1xb64_digits.py',
                        options=DIGITS),
    shipped_dcs=dict(config='configs/dcs/digits/dcs-search_efficientvit-mini_1xb64_digits.py',
                     options=DIGITS),
    shipped_ofb=dict(config='configs/ofb/digits/ofb-search_vit-mini_1xb64_digits.py',
                     options=DIGITS),
    shipped_detector=dict(config='configs/dcs/detection/dcs-ssdlite_mobilevit-mini_dense_1xb8_digit-'
                          'scenes.py', options=SCENES),
    two_searches=dict(kind='search', processes=2),
    two_retrains=dict(MASKED, processes=2),
    two_iterations=dict(kind='iterations', processes=2),
    two_segmentors=dict(kind='segment_search', processes=2,
                        options={'train_dataloader.batch_size': 2}),
    two_prunings=dict(kind='resnet_pruning', processes=2),
    two_shipped=dict(config='configs/dcs/digits/dcs-search_mobilevit-mini_1xb64_digits.py',
                     options={**DIGITS, 'train_dataloader.batch_size': 8}, processes=2))


def moment(draw, begun, iterations, seconds):
    """When a run ends whose last checkpoint has ``begun`` of its iterations.

    ``seconds`` are those of the whole run; what is drawn is drawn by ``draw``.
    """
    left = iterations - begun
    kind = draw.randrange(5)
    if kind == 0:
        return dict(kill_rename=draw.randrange(1, 5))
    if kind < 3:
        after = begun + draw.randrange(1, max(2, left))
        return dict(kill=after, signal='SIGTERM') if kind == 1 else dict(kill=after)
    # most often before the end, also where the machine is less busy than it was
    return dict(kill_at=draw.uniform(0, seconds * left / iterations / 2))


def sort_of(job):
    """How a job is ended."""
    if 'kill' in job:
        return f'{job.get("signal", "SIGKILL")} after an iteration'
    return 'SIGKILL at any time' if 'kill_at' in job else 'SIGKILL in the place of a renaming'


class Servers:
    """Processes that have imported everything, each with its own order of hashed strings.

    Every job is forked from one of them: from ``server``, or as chance has it. What depends on the
    order of a set of names is then another run when it is resumed. ``root`` is the checkout whose
    package and jobs are imported.
    """

    def __init__(self, number=2, root=ROOT):
        self.root, self.number, self.processes = root, number, {}

    def _started(self, seed):
        if seed not in self.processes:  # importing takes seconds
            path = os.pathsep.join(filter(None, (str(self.root), os.environ.get('PYTHONPATH'))))
            self.processes[seed] = subprocess.Popen(
                [sys.executable, f'{self.root}/tests/test_engine/train_jobs.py'],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env={**os.environ, 'PYTHONHASHSEED': str(seed), 'PYTHONPATH': path})
        return self.processes[seed]

    def run(self, job, server=None, seconds=600):
        """Run a job; its exit status. One that takes longer than ``seconds`` is an error."""
        server = self._started(random.randrange(self.number) if server is None else server)
        print(json.dumps([job]), file=server.stdin, flush=True)
        ready, _, _ = select.select([server.stdout], [], [], seconds)
        answer = server.stdout.readline() if ready else ''
        if not answer:
            server.kill()
            raise RuntimeError(f'expected a job to end within {seconds} s in a process that lives, '
                               f'found that it did not: {job}')
        return json.loads(answer)[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self.processes.values():
            server.kill()  # idle: a forked process that lives may hold its input open
            server.wait()


def last_checkpoint(work_dir):
    """What a run wrote last."""
    from mmkcr.safe_load import read_checkpoint
    return read_checkpoint(Path(work_dir, 'last_checkpoint').read_text())


def progress(work_dir):
    """Iterations of a run's last checkpoint, 0 without one."""
    return last_checkpoint(work_dir)['meta']['iter'] if Path(
        work_dir, 'last_checkpoint').is_file() else 0


def differences(one, other):
    """Names of what differs between two work directories' last checkpoints."""
    import torch
    first, second = map(last_checkpoint, (one, other))
    found = []
    for key in ('state_dict', 'ema_state_dict'):
        states = first.get(key, {}), second.get(key, {})
        found += sorted(states[0].keys() ^ states[1].keys())
        found += [name for name, value in states[0].items()
                  if name in states[1] and not torch.equal(value, states[1][name])]
    logs = [{name: buffer.data[0].tolist()
             for name, buffer in checkpoint['message_hub']['log_scalars'].items()
             if not name.endswith(('time', 'memory', 'eta'))} for checkpoint in (first, second)]
    return found + sorted(name for name in logs[0].keys() | logs[1].keys()
                          if logs[0].get(name) != logs[1].get(name))


def kill_runs(wanted, folder, data_root, names=tuple(RUNS), kills=8, until=float('inf'),
              first=0, servers=None, say=lambda found: None):
    """Kill runs until so many kills as wanted have hit, at most ``kills`` in one run.

    Runs of ``names`` take turns, and none begins after the time ``until``; the number of a run,
    from ``first`` on, decides its kills. ``say`` gets the counts after every run. They are
    ``kills`` by what ended the run, ``runs`` by name with the kills of each, and ``lost``: what
    differs, by run.
    """
    kinds, runs, lost = Counter(), {}, {}
    found = dict(kills=kinds, runs=runs, lost=lost)
    whole, number, names = {}, first, list(names)
    with contextlib.nullcontext(servers) if servers else Servers() as servers:
        while names and sum(kinds.values()) < wanted and time.time() < until:
            name = names[number % len(names)]
            job = dict(RUNS[name], work_dir=f'{folder}/{name}', data_root=str(data_root),
                       command=True)
            if name not in whole:
                began = time.time()
                if servers.run(job):
                    lost[job['work_dir']] = ['failed without any kill']
                    names.remove(name)
                    continue
                whole[name] = [progress(job['work_dir']), time.time() - began]
            job['work_dir'], draw = f'{folder}/{name}_{number}', random.Random(number)
            runs.setdefault(name, []).append(0)
            for attempt in range(kills + 1):
                end = moment(draw, progress(job['work_dir']), *whole[name]) \
                    if attempt < kills else {}
                status = servers.run(dict(job, resume=attempt > 0, **end))
                if status not in KILLED:
                    break
                kinds[sort_of(end)] += 1
                runs[name][-1] += 1
            differing = [f'status {status}'] if status else differences(
                f'{folder}/{name}', job['work_dir'])
            if differing:
                lost[job['work_dir']] = differing[:5]
            else:
                shutil.rmtree(job['work_dir'])
            if 'kill_at' in end:  # it had ended before
                whole[name][1] /= 2
            number += 1
            say(found)
    return found


def main():
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--kills', type=int, default=200)
    parser.add_argument('--files', type=int, default=10000)
    parser.add_argument('--folders', type=int, default=500, help='changes of each file of a folder')
    parser.add_argument('--kinds', nargs='+', help='of folders, by their names in folders.py (all)')
    parser.add_argument('--runs', nargs='+', choices=sorted(RUNS), default=list(RUNS))
    parser.add_argument('--first', type=int, default=0, help='number of the first run')
    parser.add_argument('--minutes', type=float, default=float('inf'),
                        help='no run begins later')
    parser.add_argument('--out', type=Path, help='JSON file for the counts')
    args = parser.parse_args()
    began, folder = time.time(), Path(tempfile.mkdtemp(prefix='faults_'))
    counts = {}
    if args.files or args.folders:
        from mmkcr import prepare_hosts
        prepare_hosts()  # as every command does
    if args.files:
        import mutations
        counts['files'] = mutations.run(args.files, folder)
        print(json.dumps(counts['files']), flush=True)
    if args.folders:
        import folders
        (folder / 'folders').mkdir()
        counts['folders'] = folders.run(
            args.folders, folder / 'folders', args.kinds or tuple(folders.KINDS),
            say=lambda found: print(json.dumps(found), flush=True))
        print(json.dumps(counts['folders']), flush=True)
    if args.kills:
        sys.path.insert(0, str(ROOT / 'tools'))
        from lab.digits import write_digits
        write_digits(folder / 'digits')
        counts['kills'] = kill_runs(
            args.kills, folder, folder / 'digits', args.runs, until=began + 60 * args.minutes,
            first=args.first, say=lambda found: print(json.dumps(found), flush=True))
    counts['seconds'] = round(time.time() - began)
    if args.out:
        args.out.write_text(json.dumps(counts, indent=1) + '\n')
    wrong = [counts[sort].get(key) for sort, key in (
        ('files', 'wrong'), ('folders', 'wrong'), ('kills', 'lost')) if sort in counts]
    sys.exit(any(wrong))


if __name__ == '__main__':
    main()
