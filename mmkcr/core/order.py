"""Order files: the subnets of one network for many budgets, in one file.

The units of a site have one order. So at each site the units that any two networks keep are
nested. A few budgets are *rungs*: weights are refitted for them. A network between two rungs takes
some of its blocks from the one rung and the others from the next.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple, Union

from .budget import parse_target
from .io import atomic_write
from .structure import Structure, read_json

FORMAT_VERSION = 1


class Step(NamedTuple):
    """One network of an order.

    Args:
        macs (int): MACs of the whole network.
        rungs (list[int]): Rung that each block comes from; 0 is the dense network.
    """

    macs: int
    rungs: List[int]


@dataclass
class Order:
    """Content of an order file.

    Args:
        backbone (dict): As in :class:`Structure`.
        orders (dict[str, list[int]]): All units of every site, the most important first.
        blocks (dict[str, list[str]]): Sites by the block that they belong to.
        rungs (list[dict[str, int]]): Sizes of the sites at each rung, from the dense network down.
        steps (list[Step]): The networks, from the dense one down.
        macs (dict): ``dense``, ``input_shape`` and ``part`` as in :class:`Structure`. If ``part``
            is absent, ``rest`` has the MACs outside the backbone.
        method (str): As in :class:`Structure`. Defaults to ''.
        provenance (dict): As there.
        format_version (int): Version of this file format.
        operators (dict[str, str]): Operator that computes the units that are not kept, by site.
            Such a site may keep no unit. Defaults to none: units are removed.
    """

    backbone: Dict[str, Any]
    orders: Dict[str, List[int]]
    blocks: Dict[str, List[str]]
    rungs: List[Dict[str, int]]
    steps: List[Step]
    macs: Dict[str, Any]
    method: str = ''
    provenance: Dict[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
    operators: Dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Union[str, Path]) -> 'Order':
        """Read and check an order file.

        Raises:
            FileNotFoundError: No such file.
            ValueError: The file is not a valid order; the message says what is wrong.
        """
        data, where = read_json(Path(path), 'an order'), f'`{path}`'
        names = list(cls.__dataclass_fields__)
        # every key but `operators` is required
        if not isinstance(data, Mapping) or set(data) | {'operators'} != set(names):
            found = sorted(data) if isinstance(data, Mapping) else type(data).__name__
            raise ValueError(f'expected an order with the keys {sorted(names)}, found '
                             f'{str(found):.200} in {where}')
        if data['format_version'] != FORMAT_VERSION:
            raise ValueError(f'expected order `format_version` {FORMAT_VERSION}, found '
                             f'{str(data["format_version"]):.40} in {where}')
        try:
            steps = [Step(int(macs), list(rungs)) for macs, rungs in data['steps']]
            order = cls(**{**data, 'steps': steps})
            order._check()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f'expected an order file, found one that contradicts itself '
                             f'({type(error).__name__}: {str(error):.120}) in {where}') from error
        return order

    def _check(self) -> None:
        """Refuse an order that no network can be built from."""
        for name, units in self.orders.items():
            if sorted(units) != list(range(len(units))):
                raise ValueError(f'the order of `{name}` is none of its units')
        if sorted(site for sites in self.blocks.values() for site in sites) != sorted(self.orders):
            raise ValueError('the blocks do not have every site once')
        if not self.rungs or not self.steps:
            raise ValueError('there is no network in it')
        for sizes in self.rungs:
            # at least one unit, or none where an operator computes the rest
            if set(sizes) != set(self.orders) or any(
                    not isinstance(size, int)
                    or not (name not in self.operators) <= size <= len(self.orders[name])
                    for name, size in sizes.items()):
                raise ValueError('a rung does not fit the sites')
        for step in self.steps:
            if len(step.rungs) != len(self.blocks) or any(
                    not isinstance(rung, int) or rung not in range(len(self.rungs))
                    for rung in step.rungs):
                raise ValueError('a step does not fit the blocks')
        self.structure(self.steps[-1])  # the smallest one: a structure has checks of its own

    def save(self, path: Union[str, Path]) -> None:
        """Write the file, by a temporary file and a rename, one line per site, rung and step."""
        lines = []
        for key in self.__dataclass_fields__:
            value = getattr(self, key)
            if key in ('orders', 'blocks'):
                inside = [f'{json.dumps(name)}: {json.dumps(found)}'
                          for name, found in value.items()]
                text = _block('{}', inside)
            elif key in ('rungs', 'steps'):
                text = _block('[]', [json.dumps(found) for found in value])
            else:
                text = json.dumps(value, default=str)
            lines.append(f'  {json.dumps(key)}: {text}')
        with atomic_write(path) as temporary:
            temporary.write_text('{\n' + ',\n'.join(lines) + '\n}\n', encoding='utf8')

    def choose(self, target: Union[str, int, float]) -> Step:
        """The largest network within a budget.

        Args:
            target (str | int | float): Most MACs, as in :func:`~mmkcr.core.parse_target`.

        Raises:
            ValueError: The target cannot be read, or is below the smallest network; the message
                gives the range.
        """
        most = parse_target(target, self.macs['dense'])
        fitting = [step for step in self.steps if step.macs <= most]
        if not fitting:
            raise ValueError(f'expected a target within the reachable '
                             f'{min(step.macs for step in self.steps) / 1e9:.6g}G to '
                             f'{self.macs["dense"] / 1e9:.6g}G MACs, found {most / 1e9:.6g}G')
        return max(fitting, key=lambda step: step.macs)

    def origins(self, step: Step) -> Dict[str, int]:
        """Rung that every block of a network comes from."""
        return dict(zip(self.blocks, step.rungs))

    def sizes(self, rungs: Sequence[int]) -> Dict[str, int]:
        """Sizes by site of the network whose blocks come from these rungs."""
        return {name: self.rungs[rung][name] for names, rung in zip(self.blocks.values(), rungs)
                for name in names}

    def structure(self, step: Step) -> Structure:
        """The structure of a network of the file."""
        sizes = self.sizes(step.rungs)
        macs = dict(dense=self.macs['dense'], subnet=step.macs,
                    input_shape=self.macs['input_shape'])
        if 'part' in self.macs:
            macs['part'] = self.macs['part']
        elif 'rest' in self.macs:
            macs['backbone'] = step.macs - self.macs['rest']
        # no operator where nothing is left for it to compute
        sites = {name: dict(total=len(units), kept=sorted(units[:sizes[name]]), operator=None
                            if sizes[name] == len(units) else self.operators.get(name))
                 for name, units in self.orders.items()}
        return Structure.load(dict(format_version=1, backbone=self.backbone, sites=sites,
                                   method=self.method, macs=macs, provenance=self.provenance))


def _block(brackets: str, lines: Sequence[str]) -> str:
    inside = ',\n    '.join(lines)
    return f'{brackets[0]}\n    {inside}\n  {brackets[1]}'


def chosen_structure(source: Any) -> Tuple[Structure, Dict[str, int]]:
    """The structure that a config asks for, and the rungs that its weights come from.

    Args:
        source (str | dict | Structure): As in :meth:`Structure.load`; or
            ``dict(order=<file>, target_macs=...)``.

    Returns:
        tuple[Structure, dict[str, int]]: The structure, and with an order the rung of every block
        (else an empty dict).

    Raises:
        FileNotFoundError: No such file.
        ValueError: As in :class:`Structure` or :class:`Order`.
    """
    if not isinstance(source, Mapping) or 'order' not in source:
        return Structure.load(source), {}
    if set(source) != {'order', 'target_macs'}:
        raise ValueError('expected a structure of an order with the keys `order` and '
                         f'`target_macs`, found {sorted(source)}')
    order = Order.load(source['order'])
    step = order.choose(source['target_macs'])
    return order.structure(step), order.origins(step)


def steps_between(blocks: Mapping[str, Sequence[str]], rungs: Sequence[Mapping[str, int]],
                  targets: Sequence[int], losses: Mapping[str, Sequence[float]],
                  macs: Callable[[Mapping[str, int]], int], shared: str = '') -> List[Step]:
    """Networks from rung to rung: blocks move down one by one, least loss per saved MAC first.

    Args:
        blocks (Mapping[str, Sequence[str]]): Sites by block.
        rungs (Sequence[Mapping[str, int]]): Sizes of the sites, from the dense network down.
        targets (Sequence[int]): Most MACs of every rung. A network between two rungs costs more
            than the target of the lower one, so that this target selects the lower rung itself.
        losses (Mapping[str, Sequence[float]]): Loss of every site with its first k units, by k.
        macs (Callable): MACs from the sizes of all sites.
        shared (str): The block that all others share. If its sizes differ between two rungs, there
            are no networks between them. Defaults to ''.
    """
    steps = [Step(int(macs(rungs[0])), [0] * len(blocks))]
    for rung in range(1, len(rungs)):
        high, low, start = rungs[rung - 1], rungs[rung], steps[-1].macs
        ratios = {}
        for block, names in blocks.items():
            saved = start - macs({**high, **{name: low[name] for name in names}})
            lost = sum(losses[name][low[name]] - losses[name][high[name]] for name in names)
            ratios[block] = float(lost) / saved if saved > 0 else float('inf')
        # every prefix of the sorted blocks, moved down to the lower rung, is a network of its own
        moved: List[str] = []
        alike = all(high[name] == low[name] for name in blocks.get(shared, ()))
        for block in sorted(blocks, key=ratios.get) if alike else ():
            moved.append(block)
            sizes = {**high, **{name: low[name] for own in moved for name in blocks[own]}}
            cost = int(macs(sizes))
            if targets[rung] < cost < start:
                # blocks that have not moved are still at the rung above
                steps.append(Step(cost, [rung - (own not in moved) for own in blocks]))
        steps.append(Step(int(macs(low)), [rung] * len(blocks)))
    return steps
