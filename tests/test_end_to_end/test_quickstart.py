"""The quickstart: the packaged network is compressed, timed, drawn and laid on a frontier."""

import csv
import re
import shutil

from PIL import Image
from tool_files import load_tool

from mmkcr import count_macs
from mmkcr.core import Structure
from mmkcr.deploy.int8 import find_quantizers
from mmkcr.engine.build import build_model, load_config, load_weights


def test_quickstart(tmp_path, digits_root, digits_options, monkeypatch, capsys):
    """On the few scenes that other tests have written, too."""
    monkeypatch.chdir(tmp_path)
    quickstart = load_tool('quickstart')
    monkeypatch.setattr(quickstart, 'IMAGES', digits_options.train_scenes)
    monkeypatch.setattr(quickstart, 'write_digits',
                        lambda folder: shutil.copytree(digits_root, folder))
    quickstart.main(['--work-dir', 'work'])
    said = capsys.readouterr().out
    slim = tmp_path / 'work/slim'
    model = build_model(load_config(slim / 'config.py'))
    load_weights(model, slim / 'subnet.pth')
    macs = Structure.load(slim / 'structure.json').macs
    assert count_macs(model.backbone, (3, 128, 128)) == macs['subnet'] <= 0.5 * macs['dense']
    # mIoU of the dense and of the compressed network, on held-out scenes
    dense, compressed = map(float, re.search(r'mIoU\W+([\d.]+)\W+([\d.]+)', said).groups())
    assert dense > 50 and compressed > dense - 10
    assert re.search(r'ONNX Runtime\W+0\.\d\d\W', said)
    with Image.open(tmp_path / 'work/before_after.png') as picture:
        assert picture.height > picture.width > 500
    assert 'On 1 thread, to keep 95% of the quality: ' in said
    with open(tmp_path / 'work/frontier/frontier.csv') as table:
        assert [row['network'] for row in csv.DictReader(table)] == [
            'dense', 'int8', 'half precision', '50% of the MACs', 'int8 with 50% of the MACs'
        ] * len(find_quantizers())
