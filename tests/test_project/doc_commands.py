"""The command lines of README, docs, config folders and tools."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *sorted((ROOT / 'docs').rglob('*.md')),
         *sorted((ROOT / 'configs').glob('*/README.md'))]
TOOLS = sorted(path for path in (ROOT / 'tools').rglob('*.py')
               if not {'lab', 'trained'} & {*path.relative_to(ROOT).parts})
FENCE = re.compile(r'^```(\w*)[^\n]*\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r'^\s*((?:[A-Z_]+=\S+\s+)*'
                     r'(?:python (?:-m \w+|tools/)|bash tools/|mmkcr |make |pip ).*)$')
INNER = re.compile(r'\$\(((?:mmkcr|python tools/)[^)]+)\)')
PLACEHOLDER = re.compile(r'\$|\b[A-Z]{4,}\b|[*{]')


def commands_of(path):
    """Command lines of a page: of its code blocks, also indented ones, and of its code spans."""
    text = path.read_text().replace('\\\n', ' ')
    lines = FENCE.sub('', text).splitlines()
    found = [line for language, block in FENCE.findall(text) if language in ('', 'bash')
             for line in block.splitlines()]
    found += [line for line in lines if line.startswith('    ')]
    found += re.findall(r'`([^`\n]+)`', '\n'.join(line for line in lines if line.strip()))
    found += [inner for line in found for inner in INNER.findall(line)]
    return [match[1] for line in found if (match := COMMAND.match(line))]


def examples_of(path):
    """Command lines of the docstring of a tool, or of the module that it starts."""
    text = path.read_text()
    if module := re.search(r'^from (mmkcr\.cli\.\w+) import main$', text, re.MULTILINE):
        text = (ROOT / f'{module[1].replace(".", "/")}.py').read_text()
    text = (ast.get_docstring(ast.parse(text)) or '').replace('\\\n', ' ')
    return [match[1] for line in text.splitlines() if (match := COMMAND.match(line))]


#: By page and number.
CASES = {f'{path.relative_to(ROOT)}:{number}': line for path in PAGES
         for number, line in enumerate(commands_of(path))}
CASES.update({f'{path.relative_to(ROOT)}:{number}': line for path in TOOLS
              for number, line in enumerate(examples_of(path))})
