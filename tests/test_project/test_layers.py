"""Imports point one way: every package may import those before it, and no other."""

import ast
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / 'mmkcr'
#: From the bottom up. A line is a layer: what stands in it may not import each other.
LAYERS = [
    ('version', 'lazy'),
    ('core', ),           # structure, sites, axes, MACs, budget: torch only
    ('safe_load', ),
    ('hosts', ),          # what is changed in the OpenMMLab libraries, and when
    ('registry', ),
    ('functional', 'visualization'),  # mathematics; tables and progress: no models
    ('models', ),
    ('datasets', ),
    ('evaluation', ),
    ('engine', ),         # hooks, resuming, runners
    ('closed_form', ),    # compress, from models and images
    ('distillation', ),   # the dense network teaches the compressed one
    ('deploy', ),
    ('methods', ),        # the papers, and what they share
    ('apis', ),           # what a user imports
    ('cli', ),
    ('__main__', ),
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(PACKAGE.rglob('*.py'))


class Import(NamedTuple):
    """One import of a file, also within a function."""

    path: Path
    target: str
    inner: bool  # in a function


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix('.py')


def imports(path: Path) -> Iterator[Import]:
    """Full names of all modules that a file imports, in functions and for annotations too."""
    parts = path.relative_to(ROOT).with_suffix('').parts
    nodes = [(ast.parse(path.read_text()), False)]
    for node, inner in nodes:  # which grows
        inner = inner or isinstance(node, ast.FunctionDef)
        nodes += [(child, inner) for child in ast.iter_child_nodes(node)]
        base = ''
        if isinstance(node, ast.ImportFrom):
            above = parts[:len(parts) - node.level] if node.level else ()
            base = '.'.join([*above, *([node.module] if node.module else []), ''])
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (Import(path, f'{base}{alias.name}', inner) for alias in node.names)


@functools.cache
def all_imports() -> list[Import]:
    """Of all files; read once, where a test asks for them."""
    return [found for path in FILES for found in imports(path)]


def test_every_package_has_a_layer():
    there = {package_of(path) for path in FILES} - {'__init__'}
    assert there == set(LEVEL)
    assert len(all_imports()) > 1000  # the search found something


def test_imports_point_down():
    wrong = []
    for path, target, _ in all_imports():
        own, names = package_of(path), target.split('.')
        if names[0] != 'mmkcr' or len(names) < 2 or own == names[1] or own == '__init__':
            continue
        if not LEVEL[names[1]] < LEVEL[own]:
            wrong.append(f'{path.relative_to(ROOT)} imports {target}')
    assert not wrong


def test_no_module_imports_the_whole_package():
    """Its names are of all layers, so an arrow could point up without being seen."""
    layers = {f'mmkcr.{name}' for name in LEVEL}
    assert not [f'{path.relative_to(ROOT)} imports {target}' for path, target, _ in all_imports()
                if re.fullmatch(r'mmkcr(\.\w+)?', target) and target not in layers]


def module_of(path: Path) -> str:
    """Full name of a file's module."""
    return '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')


MODULES = {module_of(path) for path in FILES}


def own_module(target: str) -> str | None:
    """The module of this package that an import reads, None for others."""
    known = [name for name in (target, target.rpartition('.')[0]) if name in MODULES]
    return known[0] if known else None


def test_no_circle_of_imports_inside_a_package():
    """When a module is imported, all that it imports is complete; functions count, too."""
    graph = {name: set() for name in MODULES}
    for path, target, _ in all_imports():
        if own_module(target) not in (None, module_of(path)):
            graph[module_of(path)].add(own_module(target))
    TopologicalSorter(graph).prepare()  # raises an error that names the circle


def modules_with_hosts() -> set[str]:
    """The hosts, and all modules of this package that load one when they are imported."""
    needs = {name: {name.rpartition('.')[0]} for name in MODULES}  # the package around a module
    for path, target, inner in all_imports():
        if not inner:
            needs[module_of(path)].add(own_module(target) or target.split('.')[0])
    hosted = {'mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg'}
    while more := {name for name, others in needs.items() if others & hosted} - hosted:
        hosted |= more
    return hosted


def test_an_import_in_a_function_keeps_a_host_out():
    """Any other import of our own stands at the top of its file."""
    inner = [(module_of(path), own_module(target)) for path, target, inner in all_imports()
             if inner and own_module(target)]
    hosted = modules_with_hosts()
    assert len(inner) > 10
    assert not [(own, other) for own, other in inner if own in hosted or other not in hosted]


def test_the_package_imports_neither_tools_nor_laboratory_nor_tests():
    assert not [found for found in all_imports()
                if found.target.split('.')[0] in ('lab', 'tools', 'tests')]


def test_the_package_itself_imports_the_lowest_layers_only():
    own = [target.split('.')[1] for path, target, _ in all_imports()
           if path == PACKAGE / '__init__.py' and target.startswith('mmkcr.')]
    assert own and all(LEVEL[name] < 1 for name in own)


def third_party(package: str) -> set[str]:
    found = {target.split('.')[0] for path, target, _ in all_imports()
             if package_of(path) == package}
    return found - set(sys.stdlib_module_names) - {'mmkcr'}


def test_core_knows_torch_numpy_and_filelock_only():
    assert third_party('core') == {'torch', 'numpy', 'filelock'}


@pytest.mark.parametrize('package', ['functional', 'visualization'])
def test_mathematics_and_tables_know_no_models(package):
    hosts = {'mmcv', 'mmpretrain', 'mmdet', 'mmseg', 'timm', 'transformers'}
    assert third_party(package) and not third_party(package) & hosts


def test_core_names_no_method():
    names = re.compile(r'\b(kcr|dcs|ofb|dwconv|gumbel|bi-?mask)\b', re.IGNORECASE)
    code = [(path.name, node.id if isinstance(node, ast.Name) else node.attr)
            for path in FILES if package_of(path) == 'core'
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Name, ast.Attribute))]
    assert len(code) > 500 and not [pair for pair in code if names.search(pair[1])]


def test_no_private_name_is_imported_from_another_module():
    found = [f'{path.relative_to(ROOT)} imports {target}' for path, target, _ in all_imports()
             if target.startswith('mmkcr.') and re.fullmatch('_[^_].*', target.split('.')[-1])]
    assert not found


def test_no_driver_asks_a_site_for_its_kind():
    """What a kind does differently it does itself."""
    asked = re.compile(r'isinstance\((self\.)?site,|'
                       r'isinstance\([^()]*, \(?\w*(Site|Embedding|Pairs)\b')
    found = [f'{path.relative_to(ROOT)}:{number}' for path in FILES
             if 'sites' not in path.parts
             for number, line in enumerate(path.read_text().splitlines(), 1)
             if asked.search(line) and 'Mapping' not in line]
    assert not found


def test_names_are_nouns_of_the_domain():
    """These stand for whatever is beside them."""
    riddles = {'found', 'whole', 'told', 'said', 'speaking', 'looked', 'settle', 'await_parent'}
    bound = [(path.name, getattr(node, 'id', '') or node.arg) for path in FILES
             for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.arg) or isinstance(node, ast.Name)
             and isinstance(node.ctx, ast.Store)]
    assert len(bound) > 5000 and not [pair for pair in bound if pair[1] in riddles]


def test_a_public_name_is_of_one_module():
    names = Counter(node.name for path in FILES if package_of(path) != 'cli'
                    for node in ast.parse(path.read_text()).body
                    if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != '_')
    assert len(names) > 500 and not [name for name, count in names.items() if count > 1]


def constants(path: Path) -> Iterator[str]:
    """Names in capitals that a module gives a value, with and without an underscore before them."""
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else \
            [node.target] if isinstance(node, ast.AnnAssign) else []
        for name in (name for target in targets for name in ast.walk(target)):
            if isinstance(name, ast.Name) and name.id.isupper():
                yield name.id


def test_a_constant_is_of_one_module():
    names = Counter(name for path in FILES for name in {*constants(path)})
    assert len(names) > 150 and not [name for name, count in names.items() if count > 1]


def test_no_private_operator_of_a_library_is_called():
    """They are not ours to call, and a saving that the dense network could have is none."""
    # `aten` has PyTorch's own operators, of which those with an underscore are private
    private = re.compile(r'torch\.ops\.(?!aten\b)|aten\._|mkldnn|_mkl')
    found = [f'{path.relative_to(ROOT)}:{number}' for path in FILES
             for number, line in enumerate(path.read_text().splitlines(), 1)
             if private.search(line)]
    assert not found
