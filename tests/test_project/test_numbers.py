"""The same quantity has the same number in commands, pages and code."""

import json
import re

from doc_commands import ROOT


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
