"""Badges and citation say what the package says of itself."""

import xml.etree.ElementTree
from pathlib import Path

import pytest
import yaml
from tool_files import load_tool

import mmkcr

ROOT = Path(__file__).parents[2]


def test_badges_are_up_to_date():
    tool = load_tool('model_zoo/badges')
    for name, text in tool.badges().items():
        path = tool.FOLDER / f'{name}.svg'
        assert path.read_text() == text and str(path.relative_to(ROOT)) in (
            ROOT / 'README.md').read_text()
        assert xml.etree.ElementTree.fromstring(text).tag.endswith('svg')
    with pytest.raises(SystemExit) as ended:
        tool.main(['--check'])
    assert ended.value.code == 0


def test_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    assert citation['version'] == mmkcr.__version__ and citation['license'] == 'Apache-2.0'
