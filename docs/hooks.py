"""What the site shows otherwise than the files: links that leave docs/, and names in docstrings.

The home page links to the repository that the site is built from.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

_LINK = re.compile(r'\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)')
_ROLE = re.compile(r':(?:func|class|data|meth|attr|mod):<code>~?([\w.]+)</code>')
_PICTURE = re.compile(r'<img [^>]*src="([^"]+)"[^>]*/?>')
_HEAD = re.compile(r'(?<=<th><code>)\w+(?=</code>)')
_FENCE = re.compile(r'(^```.*?^```$)', re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Give the text ``label (`path`)`` for links to files of the repository.

    Args:
        markdown (str): Of the page.
        page (Page): The page.
        config (MkDocsConfig): Of the site.

    Raises:
        FileNotFoundError: A link to a file of the repository that is not there.
    """
    docs = Path(config['docs_dir'])
    root, folder = docs.parent, (docs / page.file.src_uri).parent

    def name(match: re.Match) -> str:
        label, target = match[1], (folder / match[2]).resolve()
        if target.is_relative_to(docs):
            return match[0]  # checked by MkDocs
        if not target.exists():
            raise FileNotFoundError(f'expected a file at the link `{match[2]}` of '
                                    f'`{page.file.src_uri}`, found none')
        path = target.relative_to(root).as_posix()
        return f'`{path}`' if label in (path, target.name, target.stem) else f'{label} (`{path}`)'

    address = repository(root) if page.file.src_uri == 'index.md' else ''
    if address:
        markdown += f'\n[The repository]({address})\n'
    parts = _FENCE.split(markdown)
    return ''.join(part if part.startswith('```') else _LINK.sub(name, part) for part in parts)


def repository(root: Path) -> str:
    """The web address of a clone's remote `origin`, or an empty text if it has none on the web.

    Args:
        root (Path): Of the clone.
    """
    found = subprocess.run(['git', 'config', 'remote.origin.url'], cwd=root, text=True,
                           stdout=subprocess.PIPE).stdout.strip().removesuffix('.git')
    match = re.fullmatch(r'(?:https?://(?:[^@/]+@)?|ssh://git@|git@)([\w.-]+\.\w+)[:/](.+)', found)
    return f'https://{match[1]}/{match[2]}' if match else ''


def on_page_content(html: str, **_: Any) -> str:
    """Show the last part of names in docstrings, say where cells may break, link pictures.

    A picture leads to its file, where it has its full size.

    Args:
        html (str): Of the page.
    """
    html = _ROLE.sub(lambda match: f'<code>{match[1].rpartition(".")[2]}</code>', html)
    html = _HEAD.sub(lambda match: match[0].replace('_', '_<wbr>'), html)
    html = html.replace('<td>law holds</td>', '<td>law&nbsp;holds</td>')
    return _PICTURE.sub(r'<a href="\1">\g<0></a>', html)
