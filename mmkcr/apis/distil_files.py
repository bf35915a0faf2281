"""Distilling a compressed network from files to files."""

from pathlib import Path

from mmkcr.apis.compress_files import CONFIG, CompressTask, task_outputs
from mmkcr.apis.slim_files import STRUCTURE, WEIGHTS, write_subnet
from mmkcr.closed_form.distil import DistilResult, distil
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config, load_weights


def distil_files(task: CompressTask, folder: str | Path, length: str | int) -> DistilResult:
    """Distil the network in a folder of ``mmkcr compress`` and write it in its place.

    Classifiers and segmentors agree on their scores, detectors on the features that their heads
    read. A call that was killed goes on if it is repeated.

    Args:
        task (CompressTask): With the dense model and the images.
        folder (str | Path): Folder of the compressed network.
        length (str | int): See :func:`~mmkcr.closed_form.distil.distil`.
    """
    folder = Path(folder)
    student = build_model(load_config(folder / CONFIG))
    meta = load_weights(student, folder / WEIGHTS).get('meta') or {}
    result = distil(student, task.model, task.batches, length, task_outputs,
                    logits=task.classifies, work_dir=folder / 'distil')
    structure = Structure.load(folder / STRUCTURE)
    structure.provenance['distil'] = dict(
        length=str(length), steps=result.steps, best=result.best, before=result.errors[0],
        after=result.errors[result.best])
    write_subnet(result.model, structure, meta, folder)
    (folder / 'distil/last_checkpoint').unlink()  # the next call begins with what this one wrote
    return result
