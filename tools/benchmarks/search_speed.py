"""Step time of a search that slices as it goes, against the MACs that are left.

Copies of one supernet are brought to the sizes that a search passes through, sliced as the
search slices them: the largest option alive at every site is that of a network of --shares of
the MACs, chosen without preference; the smaller ones stay open, and in the last row nothing
does. Training steps (forward, losses, backward, optimizer) run in turns in one process; time and
ratio are medians over the rounds. Ideal: time in proportion to the MACs. Weights and images are
random. --profile says where the time of a step goes: matrix products and convolutions, attention,
the optimizer, and all other operators, which are those that work entry by entry. A profiler slows a
step down, small operators most.

--events times pruning events instead: all that the config's ProgressivePruningHook does when one is
due, on a supernet whose optimizer has its moments. Options are dropped, weights and moments are
sliced, MACs are counted. alpha is random and grows by a half from event to event, so that it agrees
with no budget and sites have to be tried one by one; the last event decides all that is open.

Examples:
    python tools/benchmarks/search_speed.py \\
        configs/ofb/search/ofb-search_deit-small_8xb128_in1k.py
    python tools/benchmarks/search_speed.py --events 12 --batch-size 1 \\
        configs/ofb/search/ofb-search_deit-base_8xb128_in1k.py
"""

import copy
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import torch
from mmengine.config import Config
from mmpretrain.structures import DataSample
from torch import nn
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.machine import machine_info
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.core import TOLERANCE, atomic_write, choose_options
from mmkcr.engine.build import build_model, load_config
from mmkcr.methods.search.constructors import JointOptimWrapperConstructor
from mmkcr.models.tasks import search_space
from mmkcr.registry import HOOKS
from mmkcr.visualization import format_table

COLUMNS = ('MACs (G)', 'share', 'decided', 'step (ms)', 'faster', 'ideal', 'of the ideal')
EVENTS = ('event', 'options', 'decided', 'MACs (G)', 'seconds')
PARTS = ('MACs (G)', 'products (ms)', 'attention (ms)', 'optimizer (ms)', 'others (ms)')
#: Beginnings of operators' names.
_OPERATORS = {'products (ms)': ('aten::mm', 'aten::addmm', 'aten::bmm', 'aten::_slow_conv2d',
                                'aten::mkldnn_convolution', 'aten::convolution'),
              'attention (ms)': ('aten::_scaled_dot_product', )}
CLOCKS = dict(wall=time.perf_counter, cpu=time.process_time)


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of the search of a classifier')
    parser.add_argument('--shares', type=float, nargs='+', default=[0.75, 0.5, 0.35, 0.2],
                        help='of the MACs, besides the whole network (%(default)s)')
    parser.add_argument('--batch-size', type=int, default=8, help='images a step (%(default)s)')
    parser.add_argument('--threads', type=int, default=2, help='threads (%(default)s)')
    parser.add_argument('--rounds', type=int, default=8,
                        help='steps at every size, after one to warm up (%(default)s)')
    parser.add_argument('--clock', choices=tuple(CLOCKS), default='wall',
                        help='cpu: time of the process, for --threads 1 on a busy machine '
                        '(%(default)s)')
    parser.add_argument('--device', default='cpu', help='cpu or cuda (%(default)s)')
    parser.add_argument('--profile', action='store_true',
                        help='print a second table: where the time of a step goes')
    parser.add_argument('--events', type=int, metavar='N',
                        help='time N pruning events and the last decision, and no steps (none)')
    parser.add_argument('--out', metavar='FILE', help='JSON file '
                        '(work_dirs/benchmarks/search_speed_<config name>.json)')
    return parser


class Stage:
    """A supernet sliced to a share of its MACs, with its optimizer.

    Args:
        model (nn.Module): The supernet; it is left as it is.
        optim_wrapper (dict): Of the search's config.
        share (float): Of the MACs, 1 for all options.
        decided (bool): Whether one option is left at every site.
    """

    def __init__(self, model: nn.Module, optim_wrapper: dict, share: float, decided: bool) -> None:
        self.model, self.decided = copy.deepcopy(model).train(), decided
        gates, macs = self.model.gates(), self.model.macs_model()
        if share < 1:
            options = {site: gate.option_sizes().flatten().tolist() for site, gate in gates.items()}
            chosen = choose_options(options, {site: [0.] * len(sizes) for site, sizes in
                                              options.items()}, macs,
                                    int(share * (1 - TOLERANCE) * macs.dense),
                                    int(share * macs.dense))
            for site, gate in gates.items():
                alive = gate.only(chosen[site])
                row, column = alive.nonzero()[0].tolist()
                if not decided:
                    alive[:row + 1, :column + 1] = True
                gate.restrict(alive)
            search_space(self.model).apply_decisions()
        present = macs({site: gate.present for site, gate in gates.items()})
        self.macs, self.share = present, present / macs.dense
        given = {key: value for key, value in optim_wrapper.items() if key != 'constructor'}
        self.optim_wrapper = JointOptimWrapperConstructor(
            given, given.pop('paramwise_cfg', None))(self.model)
        self.seconds: list[float] = []

    def step(self, images: torch.Tensor, samples: list[DataSample],
             clock: Callable[[], float]) -> None:
        """Take a training step and note its time."""
        start = clock()
        loss, _ = self.model.parse_losses(self.model(images, samples, mode='loss'))
        self.optim_wrapper.update_params(loss)
        if images.is_cuda:
            torch.cuda.synchronize(images.device)
        self.seconds.append(clock() - start)


def batch_of(model: nn.Module, batch_size: int) -> tuple[torch.Tensor, list[DataSample]]:
    """Random images and their labels, where the model is."""
    device = next(model.parameters()).device
    return (torch.randn(batch_size, *model.price.input_shape, device=device),
            [DataSample().set_gt_label(0).to(device) for _ in range(batch_size)])


def parts_of(stage: Stage, images: torch.Tensor, samples: list[DataSample]) -> tuple:
    """Cells of the second table, of one step."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        stage.step(images, samples, CLOCKS['wall'])
    del stage.seconds[-1]
    events = profiler.key_averages()
    times = {name: sum(event.self_cpu_time_total for event in events
                       if event.key.startswith(operators))
             for name, operators in _OPERATORS.items()}
    times['optimizer (ms)'] = sum(event.cpu_time_total for event in events
                                  if event.key.startswith('Optimizer.step#'))
    times['others (ms)'] = sum(event.self_cpu_time_total for event in events) - sum(times.values())
    return (f'{stage.macs / 1e9:.3g}', *(f'{times[name] / 1e3:.1f}' for name in PARTS[1:]))


def measure(stages: Sequence[Stage], batch_size: int, rounds: int,
            clock: Callable[[], float] = time.perf_counter) -> None:
    """Steps of all stages in turns; the first of each is forgotten."""
    images, samples = batch_of(stages[0].model, batch_size)
    for number in range(rounds + 1):
        for stage in stages[::1 if number % 2 else -1]:
            stage.step(images, samples, clock)
    for stage in stages:
        del stage.seconds[0]


def rows_of(stages: Sequence[Stage]) -> list[tuple]:
    """Cells of the table."""
    whole = stages[0]
    rows = []
    for stage in stages:
        faster = median(a / b for a, b in zip(whole.seconds, stage.seconds))
        ideal = whole.macs / stage.macs
        rows.append((f'{stage.macs / 1e9:.3g}', f'{stage.share:.1%}',
                     'yes' if stage.decided else 'no', f'{median(stage.seconds) * 1e3:.0f}',
                     f'{faster:.2f}', f'{ideal:.2f}', f'{faster / ideal:.2f}'))
    return rows


def read_search(path: str) -> Config:
    """The config of a search.

    Args:
        path (str): Of the config.

    Raises:
        ValueError: The config is of no search that slices as it goes.
    """
    config = load_config(path)
    if ((config.get('model') or {}).get('price') or {}).get('type') != 'mmkcr.AdaptiveOneHotLoss':
        raise ValueError('expected the config of a search with `mmkcr.AdaptiveOneHotLoss`, found '
                         f'`{path}` without')
    return config


def stages_of(config: Config, shares: Sequence[float],
              device: str) -> tuple[nn.Module, list[Stage]]:
    """The supernet of a search's config, and its stages.

    Args:
        config (Config): Of the search.
        shares (Sequence[float]): Of the MACs, descending.
        device (str): To compute on.
    """
    sizes = [(1., False), *((share, False) for share in shares), (shares[-1], True)]
    torch.manual_seed(0)
    model = build_model(config).to(device)
    return model, [Stage(model, config.optim_wrapper, share, decided) for share, decided in sizes]


def events_of(config: Config, count: int, batch_size: int, device: str,
              clock: Callable[[], float]) -> list[tuple]:
    """Rows of the table of events: all that the hook does, first to last.

    Args:
        config (Config): Of the search.
        count (int): Events before the decision.
        batch_size (int): Images of the one step that gives the optimizer its moments.
        device (str): To compute on.
        clock (Callable[[], float]): Gives seconds.

    Raises:
        ValueError: The config has no ``ProgressivePruningHook``.
    """
    found = next((hook for hook in config.get('custom_hooks') or ()
                  if 'ProgressivePruningHook' in str(hook['type'])), None)
    if found is None:
        raise ValueError('expected a `ProgressivePruningHook` in `custom_hooks` for `--events`, '
                         f'found none in `{config.filename}`')
    torch.manual_seed(0)
    stage = Stage(build_model(config).to(device), config.optim_wrapper, 1., False)
    stage.step(*batch_of(stage.model, batch_size), clock)
    hook, gates = HOOKS.build(dict(found, interval=1, share=1.)), stage.model.gates()
    runner = SimpleNamespace(model=stage.model, optim_wrapper=stage.optim_wrapper, iter=0,
                             max_iters=count + 1, hooks=[], cfg={},
                             logger=logging.getLogger('search_speed'))
    macs, rows = stage.model.macs_model(), []
    for gate in gates.values():
        torch.nn.init.normal_(gate.alpha, std=0.5)
    for runner.iter in range(count + 1):
        for gate in gates.values():
            gate.alpha.data *= 1.5
        start = clock()
        hook.after_train_iter(runner, runner.iter)
        if torch.device(device).type == 'cuda':
            torch.cuda.synchronize(device)
        seconds = clock() - start
        rows.append((runner.iter + 1, sum(int(gate.alive.sum()) for gate in gates.values()),
                     f'{sum(gate.decided for gate in gates.values())} of {len(gates)}',
                     f'{macs({site: gate.present for site, gate in gates.items()}) / 1e9:.3g}',
                     f'{seconds:.2f}'))
    return rows


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    args = make_parser().parse_args(argv)
    if args.events is not None and args.events < 1:
        raise ValueError(f'expected `--events` of at least 1, found {args.events}')
    if min(args.rounds, args.threads, args.batch_size) < 1 or \
            not all(0 < share < 1 for share in args.shares):
        raise ValueError('expected `--shares` within (0, 1) and at least one round, thread and '
                         f'image, found {args.shares}, {args.rounds}, {args.threads} and '
                         f'{args.batch_size}')
    if args.clock == 'cpu' and (args.threads != 1 or args.device != 'cpu'):
        raise ValueError('expected `--threads 1` on the CPU for `--clock cpu`, found '
                         f'{args.threads} on {args.device}')
    quiet_hosts()
    torch.set_num_threads(args.threads)
    config, machine = read_search(args.config), machine_info()
    stages, rows, parts, events = [], [], [], []
    host = (f'{Path(args.config).stem}, batch {args.batch_size}, {machine["cpu"]}, {args.threads} '
            f'threads, {args.clock} clock, torch {machine["torch"]}')
    if args.events:
        events = events_of(config, args.events, args.batch_size, args.device, CLOCKS[args.clock])
        print(format_table(EVENTS, events, host))
    else:
        model, stages = stages_of(config, args.shares, args.device)
        measure(stages, args.batch_size, args.rounds, CLOCKS[args.clock])
        rows = rows_of(stages)
        print(format_table(COLUMNS, rows, host))
        if args.profile:
            parts = [parts_of(stage, *batch_of(model, args.batch_size)) for stage in stages]
            print(format_table(PARTS, parts, 'where a step goes, profiled'))
    out = Path(args.out or f'work_dirs/benchmarks/search_speed_{Path(args.config).stem}.json')
    with atomic_write(out) as path:
        path.write_text(json.dumps(dict(
            config=args.config, batch_size=args.batch_size, clock=args.clock, machine=machine,
            rows=[dict(zip(COLUMNS, row), seconds=stage.seconds)
                  for row, stage in zip(rows, stages)],
            parts=[dict(zip(PARTS, row)) for row in parts],
            events=[dict(zip(EVENTS, row)) for row in events]), indent=1) + '\n')
    print(f'Wrote {out}')


if __name__ == '__main__':
    main()
