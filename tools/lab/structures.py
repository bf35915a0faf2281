"""Structures of one keep ratio everywhere, which stand in for those of searches."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config

from mmkcr.core import Structure
from mmkcr.models.tasks import search_space
from .model_zoo import uniform_subnet

#: Kinds whose units any others can stand for: the network has the same size and the same layers.
ALIKE = ('mlp_hidden', 'embedding')
_SLIM = re.compile(r"work_dirs/([^/']+_in1k(?:-100)?)/slim\b")


class Wanted(NamedTuple):
    """A structure that configs ask for.

    Args:
        name (str): Of the file, without its suffix: that of the search.
        config (str): A config that asks for it.
        target (Any): MACs of the subnet, or None.
        replaced (int, optional): Blocks whose attention an operator replaces.
    """

    name: str
    config: str
    target: Any
    replaced: Any


def structure_name(text: str) -> str:
    """Name of the file that stands in for the structure of a config, '' if there is none.

    Variants of one search (another version of the paper, a frozen backbone) share one.

    Args:
        text (str): The path of the structure that a config names, or the config's own text.
    """
    match = _SLIM.search(text)
    return re.sub('_(v1|linear)(?=_)', '', match[1]) if match else ''


def structure_of_model(entry: dict[str, Any], root: Path) -> str:
    """Name of the file that stands in for the structure of a model, '' if there is none.

    Args:
        entry (dict): Of a metafile; its ``Options`` may name another structure than its config.
        root (Path): Folder that its config's path starts from.
    """
    options = map(str, (entry.get('Options') or {}).values())
    return structure_name('\n'.join([*options, (root / entry['Config']).read_text()]))


def wanted(models: list[dict[str, Any]], root: Path) -> list[Wanted]:
    """The structures that the ImageNet configs of some metafiles ask for.

    Args:
        models (list[dict]): Entries of metafiles.
        root (Path): Folder that their configs' paths start from.
    """
    found: dict[str, Wanted] = {}
    for entry in models:
        if entry['Config'].endswith('_in1k.py'):
            name, meta = structure_of_model(entry, root), entry['Metadata']
            if name and meta.keys() & {'Target', 'Replaced Blocks'}:  # of a subnet
                found.setdefault(name, Wanted(name, entry['Config'], meta.get('Target'),
                                              meta.get('Replaced Blocks')))
    return list(found.values())


def uniform_structure(config: Config, target: Any, replaced: Any = None,
                      seed: int = 0) -> Structure:
    """The structure of a config's model with one keep ratio everywhere, units drawn at random.

    Args:
        config (Config): With a task model whose backbone is searchable.
        target (str | int | float): Most MACs; not read where blocks are replaced.
        replaced (int, optional): Blocks whose attention is replaced, the first ones.
        seed (int): Of the units. Defaults to 0.
    """
    model = uniform_subnet(config, target, replaced, seed)
    structure = search_space(model).structure
    kinds = {name: site.kind for name, site in search_space(model).sites.items()}
    for name, site in structure.sites.items():
        if kinds[name] in ALIKE:
            site.kept = len(site.kept)  # the first that many: a count in the file
    structure.provenance = dict(
        note='one keep ratio everywhere; no search has chosen these units', seed=seed,
        **({'target': str(target)} if replaced is None else {'replaced_blocks': replaced}))
    return structure


def write_structure(want: Wanted, config: Config, folder: Path) -> Path:
    """Write the file of a structure.

    Args:
        want (Wanted): Which.
        config (Config): Of ``want.config``.
        folder (Path): Of the files.
    """
    torch.manual_seed(0)
    path = folder / f'{want.name}.json'
    uniform_structure(config, want.target, want.replaced).save(path)
    return path
