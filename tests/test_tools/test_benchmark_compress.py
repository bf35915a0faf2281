"""tools/benchmarks/compress.py: a row a way to choose units, at equal MACs, with its spread."""

import json
from pathlib import Path

import pytest

from lab.compress_study import study

REPO = Path(__file__).parents[2]
DENSE = REPO / 'configs/kcr/digits/kcr-dense_vit-mini_1xb64_digits.py'
#: A network of timm: Torch-Pruning knows its attention.
TIMM = f"""
_base_ = '{DENSE}'
model = dict(
    backbone=dict(_delete_=True, type='TIMMBackbone', model_name='vit_tiny_patch16_224',
                  img_size=32, patch_size=8, embed_dim=64, depth=3, num_heads=8,
                  features_only=True, out_indices=(2, )),
    neck=dict(type='GlobalAveragePooling'), head=dict(in_channels=64))
"""


class Found:
    """A detector whose subnets find nothing: mmdet then reports no AP."""

    model = None

    def metrics(self, model):
        return {'coco/bbox_mAP': 0.5}

    def run(self, variant, target):
        return dict(macs=target, error=1.)


def test_a_detector_that_finds_nothing():
    rows = study([Found()], ['random'], [0.5], 'coco/bbox_mAP', lambda text: None)
    assert [row['mean'] for row in rows] == [0.5, 0.]
    with pytest.raises(ValueError, match=r"a metric of \['coco/bbox_mAP'\], found 'mIoU'"):
        study([Found()], ['random'], [0.5], 'mIoU')


@pytest.mark.long
@pytest.mark.parametrize('config, variants', [
    (DENSE, ['refit', 'random']), (TIMM, ['refit', 'torch_pruning', 'torch_pruning_refit'])])
def test_table(run_tool, data, make_checkpoint, tmp_path, config, variants):
    if config == TIMM:
        config = tmp_path / 'timm.py'
        config.write_text(TIMM)
    seeds = [make_checkpoint(config, seed) for seed in range(2)]
    printed = run_tool('benchmarks/compress', config, *seeds, '--metric', 'accuracy/top1',
                       '--targets', '0.5', '--variants', *variants, '--images', '16',
                       '--out', 'out', *data)
    found = json.loads((tmp_path / 'out/compress.json').read_text())
    assert found['seeds'] == 2
    dense, *rows = found['rows']
    assert [row['variant'] for row in rows] == variants
    assert all(0.45 < row['macs'] <= 0.5 and 0 <= row['mean'] <= 100 for row in rows)
    assert rows[0]['macs'] > 0 and dense['macs'] == 1
    assert 'accuracy/top1' in printed and (tmp_path / 'out/compress.png').is_file()
