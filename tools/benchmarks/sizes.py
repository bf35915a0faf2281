"""How large the project is: lines of the package, of each method and adapter; config files.

Lines are those of the files, comments and docstrings included; code is what is left without these
and empty lines. A method's own lines are those of the files that it alone brings (METHODS below);
what several methods use is counted as shared, and any method takes any kind of site. An adapter is
what a family of backbones needs: a registered function or class with its decorators.

Example:
    python tools/benchmarks/sizes.py
"""

import ast
import io
import json
import tokenize
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from mmkcr.cli.command import Parser, command
from mmkcr.visualization import format_table

ROOT = Path(__file__).resolve().parents[2]
#: Files that one method alone brings, below mmkcr/.
METHODS = dict(
    kcr=('functional/kernel.py', 'methods/kcr/*.py'),
    dcs=('functional/information.py', 'functional/clusters.py', 'methods/dcs/*.py'),
    ofb=('methods/ofb/*.py', ),
    dwconv=('models/layers/operator_attention.py', 'models/layers/head_operators.py',
            'methods/dwconv/*.py'))
#: Files that came after the aims were set, by what they are for: patterns below mmkcr/.
LATER = {
    'compression in closed form': (
        'closed_form/*.py', 'apis/compress*.py', 'functional/*refit.py',
        'functional/pivots.py', 'functional/sweep.py', 'functional/moments.py',
        'visualization.py'),
    'runtimes, int8, budgets in ms': (
        'deploy/*.py', 'core/latency.py', 'core/machine.py'),
    'self-supervision, questions, whole models': (
        'methods/kcr/selfsup/*.py', 'methods/kcr/vqa/*.py'),
    'nothing lost, the first minute': (
        'safe_load.py', 'engine/resume/*.py', 'engine/checks.py', 'cli/init.py',
        'apis/publish.py', 'cli/launch.py', 'engine/processes.py',
        'cli/console.py',
        'datasets/*_check.py', 'core/checks.py'),
}
_REGISTRARS = ('mlp_adapter', 'attention_adapter', 'channel_adapter', 'stream_adapter')


_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
            tokenize.ENDMARKER)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lines(path: Path) -> int:
    """Lines of a file."""
    return len(path.read_text().splitlines())


def code_lines(path: Path) -> int:
    """Lines of a file without docstrings, comments and empty ones."""
    text, found = path.read_text(), set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            found.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(found)


def adapters(path: Path) -> dict[str, int]:
    """Lines of every adapter in a file, decorators included, by the name of its function."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        names = [getattr(getattr(one, 'func', None), 'id', '')
                 for one in getattr(node, 'decorator_list', [])]
        if any(name in _REGISTRARS for name in names):
            found[node.name] = node.end_lineno - node.decorator_list[0].lineno + 1
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and \
                getattr(node.value.func, 'id', '') in ('simple_mlp', 'simple_attention'):
            found[ast.unparse(node.value.args[0])] = node.end_lineno - node.lineno + 1
    return found


def files_of(package: Path, patterns: Sequence[str]) -> list[Path]:
    """Files below the package that match the patterns.

    Raises:
        FileNotFoundError: A pattern matches none.
    """
    found = {pattern: sorted(package.glob(pattern)) for pattern in patterns}
    nothing = [pattern for pattern, files in found.items() if not files]
    if nothing:
        raise FileNotFoundError(f'expected files of `mmkcr/{nothing[0]}`, found none')
    return [file for files in found.values() for file in files]


def sizes(root: Path = ROOT) -> dict[str, Any]:
    """All sizes.

    Args:
        root (Path): A checkout of the project. Defaults to this one.

    Returns:
        dict: ``package`` (lines by sub-package and ``total``), ``methods`` (own lines), ``code``
        (the same of ``package``'s total and ``methods``, without docstrings and comments),
        ``later`` (lines by entry of :data:`LATER`),
        ``adapters`` (lines of each), ``adapter_files``, ``kinds`` (lines of each class of a kind of
        site) and ``configs`` (files by folder and ``total``).

    Raises:
        FileNotFoundError: A file of a method or of :data:`LATER` is not there.
    """
    package = root / 'mmkcr'
    counted: dict[str, int] = {}
    for path in sorted(package.rglob('*.py')):
        part = path.relative_to(package).parts
        name = part[0] if len(part) > 1 else '(top)'
        counted[name] = counted.get(name, 0) + lines(path)
    configs: dict[str, int] = {}
    for path in sorted((root / 'configs').rglob('*.py')):
        parts = path.relative_to(root / 'configs').parts
        name = '/'.join(parts[:-1][:2 if parts[0] == '_base_' else 1])
        configs[name] = configs.get(name, 0) + 1
    files = sorted((package / 'models/adapters').glob('*.py'))
    return dict(
        package=dict(counted, total=sum(counted.values())),
        methods={method: sum(map(lines, files_of(package, names)))
                 for method, names in METHODS.items()},
        code=dict(package=sum(map(code_lines, package.rglob('*.py'))), methods={
            method: sum(map(code_lines, files_of(package, names)))
            for method, names in METHODS.items()}),
        later={what: sum(map(lines, files_of(package, patterns)))
               for what, patterns in LATER.items()},
        adapters={name: size for path in files for name, size in adapters(path).items()},
        adapter_files={path.name: lines(path) for path in files},
        kinds={node.name: node.end_lineno - node.lineno + 1
               for path in sorted((package / 'models/sites').glob('*.py')) if path.stem != 'base'
               for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)},
        configs=dict(configs, total=sum(configs.values())))


def rows(found: dict[str, Any]) -> list[Sequence[str]]:
    """The table of :func:`sizes`: what, how many, and how many lines of code."""
    each, code = sorted(found['adapters'].values()), found['code']
    return [
        ('lines of mmkcr', str(found['package']['total']), str(code['package'])),
        *((f'of these {what}', str(size), '') for what, size in found['later'].items()),
        ('without these', str(found['package']['total'] - sum(found['later'].values())), ''),
        *((f'own lines of {method}', str(size), str(code['methods'][method]))
          for method, size in found['methods'].items()),
        ('adapters (functions and classes)', str(len(each)), ''),
        ('lines of an adapter, median and most', f'{median(each):g}, {each[-1]}', ''),
        ('lines of a file of adapters, most', str(max(found['adapter_files'].values())), ''),
        ('lines of a kind of site, most', str(max(found['kinds'].values())), ''),
        ('config files', str(found['configs']['total']), ''),
        ('of these bases', str(sum(size for name, size in found['configs'].items()
                                   if name.startswith('_base_'))), ''),
    ]


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Count and print."""
    parser = Parser(__doc__)
    parser.add_argument('--json', action='store_true', help='print all numbers as JSON')
    args = parser.parse_args(argv)
    found = sizes()
    table = format_table(('size', 'found', 'code'), rows(found))
    print(json.dumps(found, indent=1) if args.json else table)


if __name__ == '__main__':
    main()
