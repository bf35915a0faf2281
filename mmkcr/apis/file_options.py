"""Options of a compression, and where its files lie."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmkcr.closed_form.options import CompressOptions


@dataclass(frozen=True, kw_only=True)
class FileOptions(CompressOptions):
    """Options of a compression from files to files, as ``mmkcr compress`` has them.

    Args:
        config (str | Path): Config of a dense model, a file or library::path; or timm::NAME,
            timm::FOLDER or transformers::FOLDER, a folder of `save_pretrained`.
        checkpoint (str | Path, optional): Its weights, a file or an address; a folder of
            `save_pretrained` has its own.
        pretrained (bool): Fetch the weights of a network of timm or transformers from a hub, in
            place of a checkpoint. Defaults to False.
        cfg_options (dict, optional): Entries of the config to overwrite, by dotted path. Defaults
            to None.
        calibration (str, optional): Folder of images without labels, at any depth. Defaults to
            None: the training set of the config.
        images (int, optional): Images at most, a tenth of which only compares outputs. Defaults to
            None: as many as leave 2048 (``least_images``) to calibrate on.
        profiles (str | Path, optional): Folder of an earlier compression of this checkpoint, with
            these images and sites; its calibration is used. Defaults to None: the calibration in
            ``out``, if it fits.
        latency_table (str | Path, optional): File of a table of latencies: ``target`` is a time.
            Defaults to None.
        force_table (bool): Take a table of another machine. Defaults to False.
        device (str): Where networks run, for example ``cuda``. Defaults to ``cpu``.
        out (str | Path, optional): Folder to write to. Defaults to None: the folder ``compress``
            in the work directory of the config, or in ``work_dirs/<config name>``.
    """

    config: str | Path
    checkpoint: str | Path | None
    pretrained: bool = False
    cfg_options: Mapping[str, Any] | None = None
    calibration: str | None = None
    images: int | None = None
    profiles: str | Path | None = None
    latency_table: str | Path | None = None
    force_table: bool = False
    device: str = 'cpu'
    out: str | Path | None = None

    @property
    def most_images(self) -> int:
        """Images that are drawn at most; a tenth of them only compares outputs."""
        return self.images or math.ceil(self.least_images / 0.9)
