"""Times of the operators of ONNX files, in the runtimes that can tell."""

import bisect
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmkcr.deploy.runtimes import onnxruntime_session, openvino_request
from mmkcr.visualization import format_table

Runs = list[dict[str, float]]  # seconds by operator, one entry a run


class OnnxRuntimeProfile:
    """A session of ONNX Runtime that keeps the times of its operators.

    Args:
        path (Path): ONNX file.
        threads (int): Threads of the CPU.
        shape (Sequence[int]): (B, C, H, W) of the images.
    """

    def __init__(self, path: Path, threads: int, shape: Sequence[int]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._session = onnxruntime_session(str(path), threads=threads, shape=shape,
                                            profile=f'{self._folder.name}/profile')
        self._input = self._session.get_inputs()[0].name

    def __call__(self, images: np.ndarray) -> None:
        """Run once."""
        self._session.run(None, {self._input: images})

    def runs(self) -> Runs:
        """The times, run by run; the last call of a session."""
        events = json.loads(Path(self._session.end_profiling()).read_text())
        self._folder.cleanup()
        starts = sorted(event['ts'] for event in events if event['name'] == 'model_run')
        found: list[dict[str, float]] = [defaultdict(float) for _ in starts]
        for event in events:
            if event['cat'] == 'Node' and event['name'].endswith('_kernel_time'):
                run = bisect.bisect_right(starts, event['ts']) - 1
                found[run][event['args']['op_name']] += event['dur'] * 1e-6
        return found


class OpenVINOProfile:
    """The same for OpenVINO, which fuses some operators into their neighbours."""

    def __init__(self, path: Path, threads: int, shape: Sequence[int]) -> None:
        self._request = openvino_request(str(path), threads, shape, PERF_COUNT='YES')
        self._runs: Runs = []

    def __call__(self, images: np.ndarray) -> None:
        """Run once."""
        self._request.infer([images], share_inputs=True, share_outputs=True)
        found: dict[str, float] = defaultdict(float)
        for node in self._request.profiling_info:
            found[node.node_type] += node.real_time.total_seconds()
        self._runs.append(found)

    def runs(self) -> Runs:
        """The times, run by run."""
        return self._runs


PROFILES: Mapping[str, Any] = dict(onnxruntime=OnnxRuntimeProfile, openvino=OpenVINOProfile)


def operator_times(paths: Sequence[Path], runtime: str, threads: int, images: np.ndarray,
                   repeats: int = 30, warmup: int = 3) -> list[dict[str, float]]:
    """Seconds that every kind of operator takes in a run, for each of some files.

    The files are run in turns. Of each kind it is the lower quartile over the runs, so that other
    load on the machine counts little.

    Args:
        paths (Sequence[Path]): ONNX files.
        runtime (str): One of :data:`PROFILES`.
        threads (int): Threads of the CPU.
        images (np.ndarray): (B, C, H, W), fp32.
        repeats (int): Runs that count. Defaults to 30.
        warmup (int): Runs before these. Defaults to 3.
    """
    sessions = [PROFILES[runtime](path, threads, images.shape) for path in paths]
    for _ in range(warmup + repeats):
        for session in sessions:
            session(images)
    return [_lower_quartiles(session.runs()[-repeats:]) for session in sessions]


def operator_table(dense: Mapping[str, float], slim: Mapping[str, float], title: str) -> str:
    """Milliseconds by kind of operator, the dense side's largest first, and their sums."""
    kinds = sorted({**dense, **slim}, key=lambda kind: -dense.get(kind, 0.))
    lines = [(kind, dense.get(kind, 0.), slim.get(kind, 0.)) for kind in kinds]
    lines.append(('sum', sum(dense.values()), sum(slim.values())))
    return format_table(('operator', 'dense (ms)', 'slim (ms)'),
                        [(kind, *(f'{1e3 * seconds:.3f}' for seconds in both))
                         for kind, *both in lines], title=title)


def _lower_quartiles(runs: Runs) -> dict[str, float]:
    kinds = dict.fromkeys(kind for run in runs for kind in run)
    return {kind: statistics.quantiles([run.get(kind, 0.) for run in runs], n=4)[0]
            if len(runs) > 1 else runs[0].get(kind, 0.) for kind in kinds}
