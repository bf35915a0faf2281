"""Many budgets of a checkpoint in one file: what ``tools/compress.py --order`` does."""

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union

import torch

from mmkcr.core import atomic_write
from .budgets import BudgetsResult, compress_budgets
from .compress_files import (
    PROGRESS,
    CompressTask,
    both_parts,
    task_outputs,
    write_config,
    write_sensitivity,
)
from .compress_progress import CompressProgress, kept_profiles
from .count import Parts, counted_proposals

ORDER, ORDER_WEIGHTS = 'order.json', 'order.pth'


class OrderFiles(NamedTuple):
    """Written files.

    Args:
        folder (Path): Folder of the files.
        result (BudgetsResult): Their content.
        reused (Path, optional): Folder whose profiles of an earlier call were used.
        parts (Sequence[dict]): By budget, see
            :class:`~mmkcr.apis.compress_files.CompressFiles`.
        proposals (str, optional): As there.
        progress (Sequence[CompressProgress]): Progress that is kept for ``later`` steps, as of
            :class:`~mmkcr.apis.compress_files.CompressFiles`.
    """

    folder: Path
    result: BudgetsResult
    reused: Optional[Path] = None
    parts: Sequence[Parts] = ()
    proposals: Optional[str] = None
    progress: Sequence[CompressProgress] = ()


def order_files(task: CompressTask, targets: Sequence[str], sites: Optional[Sequence[Any]] = None,
                seed: int = 0, profiles: Union[str, Path, None] = None,
                later: Optional[Mapping[str, Any]] = None, **settings: Any) -> OrderFiles:
    """Compress a checkpoint for many budgets; writes order, weights, config and sensitivity.

    In the config, ``structure=dict(order=..., target_macs=...)`` selects the network to build: any
    target from the smallest budget to 100 %. The weights file holds the weights of all; loading
    picks those of the network. A killed call continues when it is repeated.

    Args:
        task (CompressTask): Config, checkpoint and images.
        targets (Sequence[str]): Budgets that are refitted, see
            :func:`~mmkcr.apis.budgets.compress_budgets`. The config selects the first.
        sites (Sequence, optional): Kinds of site. Defaults to None: as in ``compress``.
        seed (int): Seed of all random draws. Defaults to 0.
        profiles (str | Path, optional): As of
            :func:`~mmkcr.apis.compress_files.compress_files`. Defaults to None.
        later (Mapping, optional): Steps that follow, as there. Defaults to None.
        **settings: See :class:`~mmkcr.apis.compression.CompressOptions`.

    Raises:
        ValueError: As in ``compress_budgets``. Nothing is written then.
    """
    key = dict(task.key, sites=sites, settings=settings, later=later)
    kept = kept_profiles(task.folder, dict(task.key, digest=task.batches.digest()), sites, settings,
                         profiles)
    known = kept.has_profiles()
    done = [CompressProgress(task.folder / f'{PROGRESS}-{place}', dict(key, target=target), kept)
            for place, target in enumerate(targets)]
    try:
        result = compress_budgets(task.model, task.batches, targets, sites, task.input_shape,
                                  task.part, task_outputs, done=done, logits=task.classifies,
                                  seed=seed, **settings)
    # refused arguments leave nothing to continue
    except ValueError:
        for part in (*done, kept):
            part.withdraw()
        raise
    order = result.order
    # the config in place of the class name, so that the order alone builds its networks
    order.backbone['backbone'] = task.searched
    order.provenance = dict(task.provenance, targets=[str(target) for target in targets],
                            agreement=[found.agreement for found in result.results])
    # nothing of the training but where it ended and its classes
    meta = {key: task.meta[key] for key in ('dataset_meta', 'epoch', 'iter') if key in task.meta}
    with ExitStack() as stack:
        weights = stack.enter_context(atomic_write(task.folder / ORDER_WEIGHTS))
        text = stack.enter_context(atomic_write(task.folder / ORDER))
        torch.save(dict(state_dict={name: value.detach().cpu().clone().contiguous()
                                    for name, value in result.state.items()},
                        meta=dict(meta, provenance=order.provenance)), weights)
        order.save(text)
    write_config(task, order.backbone, ORDER, ORDER_WEIGHTS, target_macs=str(targets[0]))
    write_sensitivity(result.results[0].profiles, task.folder)
    left = () if later is None else done
    # also those of former calls with more targets
    for folder in set(task.folder.glob(f'{PROGRESS}-*')) - {part.folder for part in left}:
        shutil.rmtree(folder)
    return OrderFiles(task.folder, result, kept.folder if known else None,
                      [both_parts(task, found.model) for found in result.results],
                      counted_proposals(task.model), left)
