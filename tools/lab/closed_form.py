"""The stage of a study that compresses a trained network in closed form."""

from typing import Any

from mmkcr.apis.compress_files import FileOptions, build_task, compress_files
from .mask_plots import plot_channel_masks
from .pipeline import Start
from .study import Call


def compressed(call: Call) -> dict[str, Any]:
    """Compress the network that a stage starts from, and draw what is kept.

    Args:
        call (Call): With the ``arguments`` ``target``, ``images`` and ``divisor`` of
            ``mmkcr compress``.

    Returns:
        dict: ``digests`` of structure and weights.
    """
    file = call.folder / 'dense.py'
    file.write_text(call.config.pretty_text)  # as it was trained: data, its slice
    options = FileOptions(config=file, checkpoint=call.start.weights, out=call.folder,
                          seed=call.seed, progress=False, **call.arguments)
    task = build_task(options)
    found = compress_files(task, task.options, task.folder)
    plot_channel_masks(found.structure, call.folder / 'channels.png',
                       'compressed in closed form')
    return dict(digests=Start.of_folder(call.folder).digests())
