"""The folder of a saved network, whose report holds the SHA-256 of its files.

Readers of a config and of weights, of every command, compare the folder by :func:`check_folder`
before anything in it is used or run.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .file_names import CONFIG, HUB_CONFIG, REPORT, STRUCTURE, WEIGHTS
from .io import file_sha256
from .structure import read_json

#: Files beside the report that a network is built from.
READ = STRUCTURE, WEIGHTS, HUB_CONFIG, CONFIG


def write_report(report: Mapping[str, Any], folder: Path) -> None:
    """Write a report, and the SHA-256 of every other file of its folder, as the last of its files.

    The report has its own SHA-256 as well.
    """
    sums = {file.name: file_sha256(file) for file in sorted(folder.iterdir())
            if file.name != REPORT}
    content = dict(report, files=sums)
    content['sha256'] = _report_sha256(content)
    (folder / REPORT).write_text(json.dumps(content, indent=2) + '\n', encoding='utf8')


def _report_sha256(report: Mapping[str, Any]) -> str:
    """SHA-256 of a report's other entries."""
    others = {key: value for key, value in report.items() if key != 'sha256'}
    return hashlib.sha256(json.dumps(others).encode()).hexdigest()


def require_files(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder without some files."""
    for name in names:
        if not (folder / name).is_file():
            raise FileNotFoundError(f'expected a folder that `save` or `mmkcr compress` wrote at '
                                    f'`{folder}`, found one without `{name}`')


def check_folder(folder: Path) -> None:
    """Compare the files of a saved network with the sums in its report.

    A folder without a structure is none of a saved network and passes. A saved network's folder
    without sums is named in the log.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: One is another, or was edited; the message names it.
    """
    if not (folder / STRUCTURE).is_file():
        return
    report = read_json(folder / REPORT, 'a report') if (folder / REPORT).is_file() else {}
    if isinstance(report, Mapping) and not {'files', 'sha256'} & {*report}:
        logging.getLogger('mmkcr').warning(  # of `save_pretrained`, or of an earlier version
            'Not checked: no `%s` in `%s` says which files were saved, so they may have changed '
            'since, or be of other networks.', REPORT, folder)
        return
    changed = [REPORT]
    if isinstance(report, Mapping) and report.get('sha256') == _report_sha256(report):
        sums = report['files']
        require_files(folder, [name for name in READ if name in sums])
        changed = [name for name in READ if (folder / name).is_file()
                   and sums.get(name) != file_sha256(folder / name)]
    if changed:
        raise ValueError(
            f'expected `{folder / changed[0]}` as it was saved, found that it was changed or '
            f'added since, by its SHA-256 in `{REPORT}`: save the folder again; or, if that was on '
            f'purpose, remove `{REPORT}`, and the folder is loaded as it is')
