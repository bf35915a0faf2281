"""What the regularisers cost: per training step, per refresh, and KCR against the paper's form.

1. step: KCR on ViT-S, the IB loss on MobileViT-S, at 224 px; one model and optimizer in one
   process; pairs of steps with and without the term, in alternating order; the ratio of the
   medians.
2. refresh: KCR's basis from 50000 x 768 features; the IB loss's 1000 clusters of 256000 x 640
   features, from scratch and from those of the epoch before, and Q: seconds, and extra peak
   memory.
3. formulation: KCR's refresh and batch loss in the paper's own form (C n x m, eigenvectors of an
   m x m matrix, U n x r) and in ours, at a size where the former fits.

Prints tables; writes OUT.json and OUT.md with hardware and versions. Run it on a quiet machine:
the load average is part of the record. On a busy one, --threads 1 --clock cpu counts the seconds
of the process instead of those of the wall.

Examples:
  python tools/benchmarks/regularizer_overhead.py --batch 8 --pairs 24
  python tools/benchmarks/regularizer_overhead.py --terms ib --threads 1 --clock cpu
"""

import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.machine import machine_info
from mmkcr.cli.command import Parser, command
from mmkcr.core.io import atomic_write
from mmkcr.functional.clusters import fit_clusters
from mmkcr.functional.information import InformationAccumulator
from mmkcr.functional.kernel import MomentAccumulator, leading_basis, truncation_rank
from mmkcr.methods.dcs.information_bottleneck import InformationBottleneckLoss

FULL = dict(batch=16, pairs=20, refresh=(50000, 768), clusters=(256000, 640, 1000),
            paper=(20000, 3000, 384, 64))
CLOCKS = dict(wall=time.perf_counter, cpu=time.process_time)
NETWORKS = dict(kcr='KCR, ViT-S', ib='IB, MobileViT-S')
QUICK = dict(batch=1, pairs=2, refresh=(2000, 96), clusters=(2000, 48, 10),
             paper=(500, 100, 48, 8))


def parse_args(argv: Sequence[str] | None):
    """Parses the command line."""
    parser = Parser(__doc__)
    parser.add_argument('--quick', action='store_true', help='small sizes: whether it runs at all')
    parser.add_argument('--batch', type=int, help='images a step (default: 16)')
    parser.add_argument('--pairs', type=int, help='pairs of steps (default: 20)')
    parser.add_argument('--threads', type=int, default=os.cpu_count(),
                        help='threads (default: %(default)s)')
    parser.add_argument('--terms', nargs='+', choices=('kcr', 'ib'), default=['kcr', 'ib'],
                        help='of which regularisers (%(default)s)')
    parser.add_argument('--clock', choices=tuple(CLOCKS), default='wall',
                        help='cpu: time of the process, for --threads 1 on a busy machine '
                        '(%(default)s)')
    parser.add_argument('--device', default='cpu', help='of the steps: cpu or cuda (%(default)s)')
    parser.add_argument('--out', type=Path,
                        default=Path('work_dirs/benchmarks/regularizer_overhead'),
                        help='path of the results without suffix (default: %(default)s)')
    return parser.parse_args(argv)


def build_model(term: str) -> torch.nn.Module:
    """ViT-S/16 with ``kcr`` and a basis, or MobileViT-S with ``ib``, clusters and Q."""
    import mmpretrain.models  # noqa: F401

    from mmkcr.methods.search.regularized import RegularizedModel
    classifier = dict(type='mmpretrain.ImageClassifier',
                      data_preprocessor=dict(type='mmpretrain.ClsDataPreprocessor'))
    if term == 'kcr':
        classifier.update(
            backbone=dict(type='mmpretrain.VisionTransformer', arch='deit-small', img_size=224,
                          patch_size=16),
            head=dict(type='mmpretrain.VisionTransformerClsHead', num_classes=1000,
                      in_channels=384))
        loss = dict(type='mmkcr.KernelComplexityLoss', num_features=384)
    else:
        classifier.update(
            backbone=dict(type='mmpretrain.MobileViT', arch='small'),
            neck=dict(type='mmpretrain.GlobalAveragePooling'),
            head=dict(type='mmpretrain.LinearClsHead', num_classes=1000, in_channels=640))
        loss = dict(type='mmkcr.InformationBottleneckLoss', num_features=640, num_classes=1000)
    model = RegularizedModel(classifier, {term: loss})
    fill(model.regularizers[term])
    return model.train()


def fill(loss: torch.nn.Module) -> None:
    """State as of a refresh, of the right shape."""
    if hasattr(loss, 'centroids'):
        log_q = torch.randn(loss.num_classes, loss.num_clusters).log_softmax(1)
        loss.refresh(torch.randn_like(loss.centroids), log_q)
    else:
        loss.refresh(torch.eye(loss.num_features), n=50000)


def wait_for(device: str) -> None:
    """Return when a GPU is done."""
    if torch.device(device).type == 'cuda':
        torch.cuda.synchronize(device)


def measure_steps(term: str, batch: int, pairs: int, device: str = 'cpu',
                  clock: str = 'wall') -> dict[str, Any]:
    """Seconds of forward, backward and AdamW with and without the term."""
    from mmpretrain.structures import DataSample
    torch.manual_seed(0)
    model = build_model(term).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images = torch.randn(batch, 3, 224, 224, device=device)
    samples = [DataSample().set_gt_label(i).to(device) for i in range(batch)]

    def step(active: bool) -> float:
        model.regularizers[term].active = active
        wait_for(device)
        start = CLOCKS[clock]()
        losses = model(images, samples, mode='loss')
        loss, _ = model.parse_losses(losses)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wait_for(device)
        assert (f'loss_{term}' in losses) == active
        return CLOCKS[clock]() - start

    seconds: dict[bool, list[float]] = {True: [], False: []}
    for index in range(-1, pairs):
        for active in (True, False) if index % 2 else (False, True):
            elapsed = step(active)
            if index >= 0:  # the first pair warms up
                seconds[active].append(elapsed)
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    ratios = [a / b for a, b in zip(seconds[True], seconds[False])]
    quarters = statistics.quantiles(ratios, n=4)
    return dict(term=term, batch=batch, pairs=pairs, seconds_with=medians[True],
                seconds_without=medians[False], ratio=medians[True] / medians[False],
                pair_ratio_quartiles=[quarters[0], statistics.median(ratios), quarters[2]])


def timed(call: Callable[[], Any], clock: str, repeats: int = 3) -> tuple[float, float]:
    """Median seconds, and MB that the process's peak memory grew in the first call."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, grown = [], 0.
    for index in range(repeats):
        start = CLOCKS[clock]()
        call()
        seconds.append(CLOCKS[clock]() - start)
        if index == 0:
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return statistics.median(seconds), grown


def refresh(features: torch.Tensor, rank: int, batch: int = 256) -> torch.Tensor:
    """Our refresh, features arriving in batches as from a loader."""
    accumulator = MomentAccumulator(features.shape[1])
    for part in features.split(batch):
        accumulator.add(part)
    return leading_basis(accumulator.moment(), rank)


def measure_refresh(clock: str, n: int, d: int) -> dict[str, Any]:
    """Seconds and extra peak memory of one refresh from (n, d) features."""
    refresh(torch.randn(64, 8), 2)  # libraries load before the peak is read
    features = torch.randn(n, d)
    seconds, megabytes = timed(lambda: refresh(features, truncation_rank(n, d, 0.2)), clock)
    return dict(n=n, d=d, seconds=seconds, extra_peak_mb=megabytes)


def measure_clusters(clock: str, n: int, d: int, clusters: int) -> dict[str, Any]:
    """Seconds and extra peak memory of k-means and of Q, of (n, d) features."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(clusters, d, generator=generator)
    labels = torch.randint(clusters, (n, ), generator=generator)
    features = centres[labels] + 1.5 * torch.randn(n, d, generator=generator)
    loss = InformationBottleneckLoss(d, clusters)
    fit_clusters(features[:clusters], clusters)  # libraries load
    first, megabytes = timed(lambda: loss.centroids.copy_(fit_clusters(features, clusters)),
                             clock, 1)
    moved = features + 0.03 * torch.randn(n, d, generator=generator)
    again, _ = timed(lambda: fit_clusters(moved, clusters, start=loss.centroids), clock, 1)

    def sum_up() -> None:
        sums = InformationAccumulator(clusters, clusters)
        for part, classes in zip(features.split(256), labels.split(256)):
            sums.add(loss.log_phi(part), classes)
        sums.log_q(loss.smoothing)

    q_seconds, _ = timed(sum_up, clock, 1)
    return dict(n=n, d=d, clusters=clusters, seconds_first=first, seconds_again=again,
                seconds_q=q_seconds, extra_peak_mb=megabytes)


def paper_basis(features: torch.Tensor, landmarks: int, rank: int) -> torch.Tensor:
    """The paper's U~ (n, r): C Q L^{-1/2} with the (m, m) eigenproblem (section 3.2)."""
    chosen = features[:landmarks]
    values, vectors = torch.linalg.eigh(chosen @ chosen.T)
    values, vectors = values.flip(0)[:rank], vectors.flip(1)[:, :rank]
    return (features @ chosen.T) @ (vectors / values.sqrt())


def measure_formulation(clock: str, form: str, n: int, m: int, d: int,
                        batch: int) -> dict[str, Any]:
    """Refresh and batch loss (with gradient) in one of the two forms."""
    rank = truncation_rank(n, d, 0.2)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(n, d, generator=generator)
    basis = paper_basis if form == 'paper' else \
        (lambda features, landmarks, rank: refresh(features[:landmarks], rank))
    basis(features[:64], 32, 2)  # libraries load before the peak is read
    u = features[:, :rank].contiguous()  # a stand-in of U's shape
    v = torch.eye(d)[:, :rank].contiguous()
    part = features[:batch].clone().requires_grad_()

    def batch_loss() -> None:
        if form == 'paper':  # rows of K_n against all n stored features
            inside = ((part @ features.T / n) @ u) * u[:batch]
            (part.square().sum() - inside.sum()).backward()
        else:
            (part - (part @ v) @ v.T).square().sum().backward()

    seconds, megabytes = timed(lambda: basis(features, m, rank), clock, 1)
    step_seconds, _ = timed(batch_loss, clock, 5)
    stored = n * rank + n * d if form == 'paper' else d * rank
    return dict(form=form, refresh_seconds=seconds, refresh_extra_peak_mb=megabytes,
                batch_loss_seconds=step_seconds, stored_mb=stored * 4 / 2**20)


def in_a_fresh_process(function: Callable, threads: int, *args: Any) -> dict[str, Any]:
    """A peak of memory belongs to a process, so each measurement of it gets its own."""
    with multiprocessing.get_context('spawn').Pool(1, torch.set_num_threads, (threads, )) as pool:
        return pool.apply(function, args)


def tables(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    n, m, d, batch = result['sizes']['paper']
    host = ', '.join(f'{key} {value}' for key, value in result['machine'].items())
    lines = [f'{host}; clock: {result["clock"]}']
    if result['steps']:
        lines += ['', '| step, 224 px | batch | with | without | ratio of medians |',
                  '|---|---|---|---|---|']
        lines += [f'| {NETWORKS[step["term"]]} | {step["batch"]} | {step["seconds_with"]:.4f} s | '
                  f'{step["seconds_without"]:.4f} s | {step["ratio"]:.4f} |'
                  for step in result['steps']]
    lines += ['', '| refresh | seconds | extra peak memory |', '|---|---|---|']
    if result['refresh']:
        one = result['refresh']
        lines += [f'| KCR, {one["n"]} x {one["d"]} | {one["seconds"]:.3f} s | '
                  f'{one["extra_peak_mb"]:.1f} MB |']
    if result['clusters']:
        means = result['clusters']
        lines += [f'| IB, {means["clusters"]} clusters of {means["n"]} x {means["d"]} | '
                  f'{means["seconds_first"]:.3f} s, then {means["seconds_again"]:.3f} s | '
                  f'{means["extra_peak_mb"]:.1f} MB |',
                  f'| IB, Q of as many | {means["seconds_q"]:.3f} s | |']
    if result['formulation']:
        paper, ours = result['formulation']
        lines += ['', f'| n {n}, m {m}, d {d}, batch {batch} | paper | ours | ratio |',
                  '|---|---|---|---|']
        for key, label in (('refresh_seconds', 'refresh, s'),
                           ('refresh_extra_peak_mb', 'refresh, extra peak MB'),
                           ('batch_loss_seconds', 'batch loss and gradient, s'),
                           ('stored_mb', 'stored between refreshes, MB')):
            ratio = paper[key] / ours[key] if ours[key] else float('inf')
            lines.append(f'| {label} | {paper[key]:.4g} | {ours[key]:.4g} | {ratio:.4g} |')
    return '\n'.join(lines) + '\n'


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    args = parse_args(argv)
    if args.clock == 'cpu' and (args.threads != 1 or args.device != 'cpu'):
        raise ValueError('expected `--threads 1` on the CPU for `--clock cpu`, found '
                         f'{args.threads} on {args.device}')
    sizes = dict(QUICK if args.quick else FULL)
    sizes.update({key: getattr(args, key) for key in ('batch', 'pairs') if getattr(args, key)})
    torch.set_num_threads(args.threads)
    result = dict(quick=args.quick, machine=machine_info(), sizes=sizes, clock=args.clock,
                  refresh=None, formulation=None, clusters=None)
    if 'kcr' in args.terms:
        result['refresh'] = in_a_fresh_process(measure_refresh, args.threads, args.clock,
                                               *sizes['refresh'])
        result['formulation'] = [
            in_a_fresh_process(measure_formulation, args.threads, args.clock, form, *sizes['paper'])
            for form in ('paper', 'ours')]
    if 'ib' in args.terms:
        result['clusters'] = in_a_fresh_process(measure_clusters, args.threads, args.clock,
                                                *sizes['clusters'])
    result['steps'] = [measure_steps(term, sizes['batch'], sizes['pairs'], args.device, args.clock)
                       for term in args.terms]
    text = tables(result)
    print(text)
    for suffix, content in (('.json', json.dumps(result, indent=2) + '\n'), ('.md', text)):
        with atomic_write(args.out.with_suffix(suffix)) as path:
            path.write_text(content)


if __name__ == '__main__':
    main()
