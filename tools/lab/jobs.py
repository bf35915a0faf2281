"""Long jobs in processes of their own, with a progress display."""

import contextlib
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mmkcr.core import locked
from mmkcr.safe_load import is_trusted, trust_checkpoints

#: Says what goes on: job, stage, epochs done, epochs of the stage, its last metrics, or None
#: when the stage is finished.
Say = Callable[[str, str, int, int, Mapping[str, float] | None], None]

_news: Any = None  # of a worker: the queue to the parent


class Job(NamedTuple):
    """Something that runs in stages.

    Args:
        work (Callable): Takes a :data:`Say`, returns the result; must pickle.
        stages (int): Number of stages that it will call finished.
        log (Path): File for all that it prints; the job has the folder of that name, without
            the suffix, for itself.
    """

    work: Callable[[Say], dict[str, Any]]
    stages: int
    log: Path


def run_jobs(jobs: Mapping[str, Job], processes: int = 2) -> list[dict[str, Any]]:
    """Run jobs, several at a time, each in a process with its share of the cores.

    On networks this small two processes of one thread do twice the work of
    one process with two threads.

    Args:
        jobs (Mapping[str, Job]): Jobs by name.
        processes (int): How many at a time. Defaults to 2.

    Returns:
        list[dict]: Results in the order of ``jobs``.
    """
    context = multiprocessing.get_context('spawn')
    share = max(1, min(4, (os.cpu_count() or 1) // min(processes, len(jobs))))
    threads = int(os.environ.get('OMP_NUM_THREADS', share))
    with context.Manager() as manager, _Display(jobs) as display:
        news = manager.Queue()
        with ProcessPoolExecutor(processes, context, _start, (news, threads, is_trusted())) as pool:
            futures = [pool.submit(_run, job) for job in jobs.values()]
            try:
                while wait(futures, timeout=0.2).not_done:
                    _show(news, display)
                    if any(f.done() and f.exception() for f in futures):
                        break
                _show(news, display)
                for future in futures:  # a failure first, as earlier jobs may run for hours
                    if future.done():
                        future.result()
                return [future.result() for future in futures if not future.cancel()]
            except BaseException:
                for process in list(pool._processes.values()):
                    process.terminate()
                raise


def _show(news: Any, display: '_Display') -> None:
    while not news.empty():
        display.update(*news.get())


def _start(news: Any, threads: int, trusted: bool) -> None:
    global _news
    _news = news
    torch.set_num_threads(threads)
    trust_checkpoints(trusted)
    warnings.filterwarnings('ignore')


def _run(job: Job) -> dict[str, Any]:
    with _into(job.log), locked(job.log.with_suffix('')):
        return job.work(lambda *args: _news.put(args))


@contextlib.contextmanager
def _into(path: Path) -> Iterator[None]:
    """Everything printed goes into a file: the hosts' loggers write to stdout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, 'a') as file, contextlib.redirect_stdout(file), \
            contextlib.redirect_stderr(file):
        yield


class _Display:
    """A bar a job on a terminal, a line a finished stage everywhere."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        console = Console(file=sys.stdout, highlight=False)
        self._progress = Progress(TextColumn('{task.description}'), BarColumn(),
                                  TextColumn('{task.fields[news]}'), TimeElapsedColumn(),
                                  console=console, disable=not console.is_terminal)
        self._console = console
        self._tasks = {name: self._progress.add_task(name, total=job.stages, news='')
                       for name, job in jobs.items()}
        self._done = dict.fromkeys(self._tasks, 0)

    def __enter__(self) -> '_Display':
        self._progress.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._progress.stop()

    def update(self, name: str, stage: str, epoch: int, epochs: int,
               metrics: Mapping[str, float] | None) -> None:
        """Show how far a stage is; arguments as of :data:`Say`."""
        finished = metrics is None
        self._done[name] += finished
        share = self._done[name] + (0 if finished else epoch / epochs)
        top1 = (metrics or {}).get('accuracy/top1')
        text = f'{stage} {epoch}/{epochs}' + (f' top-1 {top1:.1f} %' if top1 else '')
        self._progress.update(self._tasks[name], completed=share, news=text)
        if finished:
            epochs_text = f' ({epochs} epochs)' if epochs else ''
            self._console.print(f'{name}: {stage} finished{epochs_text}')
