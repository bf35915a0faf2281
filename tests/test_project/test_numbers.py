"""The same quantity has the same number in commands, pages and code."""

import json
import re

from doc_commands import PAGES, ROOT

from mmkcr.cli import compress
from mmkcr.closed_form.options import CompressOptions

#: Numbers of images of a default: three digits and more.
_NUMBER = re.compile(r'(?<![\d.])\d{3,}(?!\d|\.\d)')


def help_of(option, main, capsys):
    """What a command's help says of an option, as one line."""
    try:
        main(['--help'])
    except SystemExit:
        text = capsys.readouterr().out
    entry, = re.findall(rf'^  {option} .*?(?=^  -|\Z)', text, re.M | re.S)
    return ' '.join(entry.split())


def test_images_that_are_used(capsys):
    """By the help of the command, by the pages and by the function."""
    told = [int(number) for number in _NUMBER.findall(help_of('--images', compress.main, capsys))]
    pages = [int(number) for page in PAGES for number in re.findall(
        r'uses up to (\d+) of the images', ' '.join(page.read_text().split()))]
    assert told and pages and {*told, *pages} == {CompressOptions.least_images}


def test_rows_of_readme_are_those_of_the_networks_that_come_trained():
    """A row of a network that `mmkcr zoo --trained` lists has its number."""
    table = re.search(r'<!-- results: readme -->\n(.*?)<!--', (ROOT / 'README.md').read_text(),
                      re.S)[1]
    trained = json.loads((ROOT / 'tools/model_zoo/trained/models.json').read_text())['models']
    numbers = {model['name']: [str(number) for number in model['results'].values()]
               for model in trained}
    for name, words in (('compress-30_vit-mini_digits', 'ViT-mini on digits'),
                        ('compress-30_upernet_swin-mini_digit-scenes', 'UPerNet')):
        lines = [line for line in table.splitlines() if words in line]
        assert all(number in line for line in lines for number in numbers[name]), lines
