"""No page is longer than its limit, and the command says so of one that is."""

import re

import pytest
from tool_files import load_tool

tool = load_tool('model_zoo/words')


@pytest.mark.parametrize('name', tool.count())
def test_no_page_is_too_long(name):
    number, limit = tool.count()[name]
    assert number <= limit


@pytest.mark.parametrize('name', [name for name in tool.count() if name.endswith('.md')])
def test_plain_words(name):
    page = (tool.ROOT / name).read_text().replace('\n', ' ')
    assert not [riddle for riddle in ('by the draw', 'pays at', 'points off', ' but for ')
                if riddle in page]


def test_no_article_stands_before_the_name_of_a_class():
    """It is another for names that begin with a vowel, as a EncoderDecoder."""
    files = [path for path in (tool.ROOT / 'mmkcr').rglob('*.py') if '.mim' not in path.parts]
    named = re.compile(r'\b[Aa]n? `?\{[^}]*(?:__name__|type)')
    assert not [f'{path}: {found[0]}' for path in files for found in [named.search(
        path.read_text())] if found]


def test_what_counts():
    page = ('# Two words\n<!-- results: a -->\n| x | y |\n<!-- /results -->\nfive\n\n'
            '```python\nprint(1)\n```\n\n<!-- table -->\n| 1 |\n<!-- /table -->\n| by hand |\n')
    assert tool.words(page) == len('# Two words five | by hand |'.split())


def test_a_page_that_is_too_long_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / 'docs').mkdir()
    (tmp_path / 'README.md').write_text('word ' * 801)
    (tmp_path / 'docs/refit.md').write_text('word ' * 2500)
    found = tool.count(tmp_path)
    assert found['README.md'] == (801, 800) and found['docs/refit.md'] == (2500, 2500)
    monkeypatch.setattr(tool, 'count', lambda: found)
    with pytest.raises(SystemExit) as ended:
        tool.main([])
    assert ended.value.code == 1
    assert '801 of    800  README.md  too long' in capsys.readouterr().out
