"""Pipelines of the quickstart in processes of their own, and their latency."""

from functools import partial
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch

from mmkcr.apis.build import default_shape
from mmkcr.apis.latency import measure_pair
from .jobs import Job, Say, run_jobs
from .quickstart import MODELS, TRAININGS, Pipeline
from .quickstart_config import QuickstartOptions
from .stages import run_stage


def run_pipelines(jobs: Sequence[Tuple[str, int]], options: QuickstartOptions,
                  processes: int = 2) -> List[Dict[str, Any]]:
    """Run pipelines, several at a time.

    Args:
        jobs (Sequence[tuple[str, int]]): Architecture and seed of each.
        options (QuickstartOptions): What is run.
        processes (int): See :func:`~lab.jobs.run_jobs`. Defaults to 2.

    Returns:
        list[dict]: Of :meth:`~lab.quickstart.Pipeline.run`, in the order
        of ``jobs``.
    """
    pipelines = [Pipeline(arch, seed, options) for arch, seed in jobs]
    return run_jobs({
        pipeline.name: Job(partial(_run, pipeline.arch, pipeline.seed, options),
                           len(TRAININGS) + len(MODELS) + 2,
                           pipeline.folder.with_name(f'{pipeline.folder.name}.log'))
        for pipeline in pipelines
    }, processes)


def _run(arch: str, seed: int, options: QuickstartOptions, say: Say) -> Dict[str, Any]:
    return Pipeline(arch, seed, options, say).run()


def measure_latencies(results: Sequence[Mapping[str, Any]],
                      options: QuickstartOptions) -> Dict[str, Dict[str, float]]:
    """Milliseconds an image of the small models, each measured in turns with the dense one.

    The first seed of every architecture counts; nothing else runs meanwhile.

    Args:
        results (Sequence[dict]): Of :func:`run_pipelines`.
        options (QuickstartOptions): As there.

    Returns:
        dict[str, dict[str, float]]: By architecture.
    """
    found: Dict[str, Dict[str, float]] = {}
    for result in results:
        if result['arch'] not in found:
            pipeline = Pipeline(result['arch'], result['seed'], options)
            inputs = dict(slim=result['slim']['digests'], closed=result['closed']['digests'],
                          threads=torch.get_num_threads())
            found[result['arch']] = run_stage(
                pipeline.folder / 'latency', inputs, lambda _, p=pipeline: _latency(p))
    return found


def _latency(pipeline: Pipeline) -> Dict[str, float]:
    config, dense = pipeline.deployed('dense')
    images = torch.randn(64, *default_shape(config, dense))
    found: Dict[str, float] = {}
    for name in ('closed', 'slim'):
        timing = measure_pair(dense, pipeline.deployed(name)[1], images, repeats=100,
                              warmup=10).to_dict()
        found.update({'dense': 1e3 * timing['seconds']['dense'] / len(images),
                      name: 1e3 * timing['seconds']['slim'] / len(images),
                      f'{name}_ratio': timing['ratio'],
                      f'{name}_ratio_quartiles': timing['ratio_quartiles'],
                      f'{name}_share': timing['share']})
    return found
