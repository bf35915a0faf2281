"""Imports point one way: every package may import those before it, and no other."""

import ast
import re
import sys
from pathlib import Path
from typing import Iterator, NamedTuple, Set

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / 'mmkcr'
#: From the bottom up. A line is a layer: what stands in it may not import each other.
LAYERS = [
    ('version', ),
    ('compat', 'safe_load', 'registry'),
    ('core', ),           # structure, sites, axes, MACs, budget: torch only
    ('functional', 'visualization'),  # mathematics, and figures: no models
    ('models', ),
    ('datasets', ),
    ('evaluation', ),
    ('engine', 'deploy'),
    ('apis', ),
    ('__main__', ),
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(PACKAGE.rglob('*.py'))


class Import(NamedTuple):
    """One import of a file, also within a function."""

    path: Path
    target: str


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix('.py')


def imports(path: Path) -> Iterator[Import]:
    """Full names of all modules that a file imports."""
    parts = path.relative_to(ROOT).with_suffix('').parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (Import(path, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parts[:len(parts) - node.level] if node.level else ()
            base = '.'.join([*above, *([node.module] if node.module else [])])
            yield from (Import(path, f'{base}.{alias.name}') for alias in node.names)


ALL = [found for path in FILES for found in imports(path)]


def test_every_package_has_a_layer():
    there = {package_of(path) for path in FILES} - {'__init__'}
    assert there == set(LEVEL)
    assert len(ALL) > 1000  # the search found something


def test_imports_point_down():
    wrong = []
    for path, target in ALL:
        own, names = package_of(path), target.split('.')
        if names[0] != 'mmkcr' or len(names) < 2 or own == names[1] or own == '__init__':
            continue
        if not LEVEL[names[1]] < LEVEL[own]:
            wrong.append(f'{path.relative_to(ROOT)} imports {target}')
    assert not wrong


def test_the_package_imports_neither_tools_nor_laboratory_nor_tests():
    assert not [found for found in ALL if found.target.split('.')[0] in ('lab', 'tools', 'tests')]


def test_the_package_itself_imports_the_lowest_layers_only():
    own = [target.split('.')[1] for path, target in ALL if path == PACKAGE / '__init__.py'
           and target.startswith('mmkcr.')]
    assert own and all(LEVEL[name] < 2 for name in own)


def third_party(package: str) -> Set[str]:
    found = {target.split('.')[0] for path, target in ALL if package_of(path) == package}
    return found - set(sys.stdlib_module_names) - {'mmkcr'}


def test_core_knows_torch_and_numpy_only():
    assert third_party('core') == {'torch', 'numpy'}


@pytest.mark.parametrize('package', ['functional', 'visualization'])
def test_mathematics_and_figures_know_no_models(package):
    hosts = {'mmcv', 'mmpretrain', 'mmdet', 'mmseg', 'timm', 'transformers'}
    assert third_party(package) and not third_party(package) & hosts


def test_core_names_no_method():
    names = re.compile(r'\b(kcr|dcs|ofb|dwconv|gumbel|bi-?mask)\b', re.IGNORECASE)
    code = [(path.name, node.id if isinstance(node, ast.Name) else node.attr)
            for path in FILES if package_of(path) == 'core'
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Name, ast.Attribute))]
    assert len(code) > 500 and not [pair for pair in code if names.search(pair[1])]


def test_no_private_operator_of_a_library_is_called():
    """They are not ours to call, and a saving that the dense network could have is none."""
    private = re.compile(r'torch\.ops\.|mkldnn|_mkl')
    found = [f'{path.relative_to(ROOT)}:{number}' for path in FILES
             for number, line in enumerate(path.read_text().splitlines(), 1)
             if private.search(line)]
    assert not found
