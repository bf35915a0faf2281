"""Docstrings say parameters and errors, in direct sentences; functions are named by verbs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / 'mmkcr'
#: Words that point at a noun instead of naming it.
POINTING = re.compile(
    r'\b(that of|those|the one|the others?|the same|likewise|the former|the latter|what|which|'
    r'such)\b', re.IGNORECASE)
#: First words of names that say a state and not an action.
PARTICIPLES = set(
    'taken given called shown caught copied searched compressed finished folded numbered moved '
    'told spread opened sized exported recorded written scoped resolved shortened named padded '
    'traced drawn grown built held kept found known launched augmented judged completed seeded '
    'wanted published trained refined counted chosen unknown lost offered seen begun timed tilted '
    'expected measured scaled'.split())
TREES = [ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob('*.py'))
         if '.mim' not in path.parts]


def functions() -> Iterator[tuple[ast.FunctionDef, str]]:
    """All functions and methods, nested ones too, with their docstrings."""
    for tree in TREES:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                yield node, ast.get_docstring(node) or ''


def parameters(node: ast.FunctionDef) -> list[str]:
    """Names of a function's parameters, without the object or class of a method."""
    names = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
    return [name for name in names if name not in ('self', 'cls')]


def of_many_parameters() -> list[tuple[list[str], str]]:
    """Parameters and docstrings of public functions with three or more; hosts' hooks are out."""
    return [(parameters(node), text) for node, text in functions()
            if len(parameters(node)) >= 3 and node.name != 'forward'
            and not node.name.startswith(('_', 'before_', 'after_'))]


def share(rows: list[bool]) -> float:
    assert len(rows) > 100  # the search found something
    return sum(rows) / len(rows)


def test_functions_of_many_parameters_have_args():
    assert share(['Args:' in text or 'arguments are those of' in text.lower()
                  for _, text in of_many_parameters()]) >= 0.75


def test_docstrings_name_parameters():
    assert share([bool(re.search(rf'\b{name}s?\b', text)) for names, text in of_many_parameters()
                  for name in names]) >= 0.85


def test_docstrings_say_errors():
    says = re.compile('Raises:|[Rr]efus|[Rr]aise|error')
    assert share([bool(says.search(text)) for node, text in functions()
                  if node.name[0] != '_' and any(isinstance(one, ast.Raise)
                                                 for one in ast.walk(node))]) >= 0.75


def test_sentences_have_nouns():
    kinds = ast.FunctionDef, ast.ClassDef, ast.Module
    texts = [text for tree in TREES for node in ast.walk(tree)
             if isinstance(node, kinds) and (text := ast.get_docstring(node))]
    words = sum(len(text.split()) for text in texts)
    assert words > 10_000
    assert 1000 * sum(len(POINTING.findall(text)) for text in texts) <= 8 * words


def test_functions_are_named_by_verbs():
    names = [node.name for node, _ in functions()
             if node.name.lstrip('_').split('_')[0] in PARTICIPLES]
    assert len(names) <= 15, names


def count_code_lines(node: ast.FunctionDef, lines: list[str]) -> int:
    """Lines of a function without its decorators, docstring, comments and empty lines."""
    body = node.body[ast.get_docstring(node) is not None:]
    code = lines[node.lineno - 1:node.body[0].lineno - 1]
    code += lines[body[0].lineno - 1:node.end_lineno] if body else []
    return sum(bool(line.strip()) and not line.strip().startswith('#') for line in code)


def test_functions_are_short():
    """Beyond 50 lines of code, steps with names read better."""
    lengths = {}
    for path in PACKAGE.rglob('*.py'):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                place = f'{path.name}:{node.lineno} {node.name}'
                lengths[place] = count_code_lines(node, text.splitlines())
    assert len(lengths) > 1000
    assert not {name: count for name, count in lengths.items() if count > 50}
