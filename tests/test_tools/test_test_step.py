"""tools/benchmarks/test_step.py: whole detectors, as they are tested."""

import json
from pathlib import Path

import pytest
from mmengine.model import BaseModel

from few_scenes import FEW
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config
from mmkcr.models.counting import count_parts

TOOL = 'benchmarks/test_step'
BASE = Path(__file__).parents[2] / 'configs/kcr/detection' / \
    'kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py'


@pytest.mark.long
def test_a_compressed_detector_beside_the_dense_one(run_tool, small_digits, make_checkpoint,
                                                    tmp_path, monkeypatch):
    """What `compress` writes is a side; both sides see the same images, in turns."""
    detector = tmp_path / 'detector.py'
    detector.write_text(FEW.format(base=str(BASE), data=f'{small_digits / "scenes"}/')
                        + 'model = dict(backbone=dict(init_cfg=None))\n')
    weights, seen = make_checkpoint(detector, std=0.02), []
    printed = run_tool('compress', detector, weights, '--target-macs', '80%', '--scope', 'model',
                       '--part', 'model', '--out', tmp_path / 'slim')
    assert 'Outputs on the 1 image of the refit itself' in printed
    step = BaseModel.test_step
    monkeypatch.setattr(BaseModel, 'test_step', lambda model, data: (
        seen.append((id(model), data['data_samples'][0].img_id)), step(model, data))[1])
    printed = run_tool(TOOL, detector, weights, '--slim', tmp_path / 'slim/config.py',
                       '--slim', detector, weights, '--images', 1, '--warmup', 2,
                       '--out', tmp_path / 't.json')
    assert len(seen) == 2 * 2 * 3 and len({image for _, image in seen}) == 1
    assert [model for model, _ in seen[:6]].count(seen[0][0]) == 3
    result = json.loads((tmp_path / 't.json').read_text())
    structure = Structure.load(tmp_path / 'slim/structure.json')
    dense = sum(count_parts(build_model(load_config(detector)), (3, 128, 128)).values())
    slim, same = result['rows']
    assert slim['macs']['dense'] == dense == same['macs']['slim'] and same['macs']['ratio'] == 1
    assert slim['macs']['slim'] == structure.macs['subnet'] <= 0.8 * dense
    assert slim['ratio'] == pytest.approx(
        slim['samples']['slim'][0] / slim['samples']['dense'][0])
    assert result['machine']['threads'] == 1 and f'{slim["macs"]["ratio"]:.1%}' in printed
