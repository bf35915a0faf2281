"""Every config of drop-in depthwise convolution is built, with its structure and schedules."""

import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from config_files import CONFIGS, ROOT, build, check_run, check_state, stage_of, task_of, transforms
from mmpretrain.models import VisionTransformer
from tool_files import load_tool

from lab.model_zoo import uninitialized
from long_form import every_nth
from mmkcr.engine.build import build_model, load_config
from mmkcr.engine.checks import check_classes
from mmkcr.models.head_choice import choose_heads
from mmkcr.models.layers.head_operators import OPERATORS
from mmkcr.models.layers.operator_attention import MixedAttention, OperatorAttention
from mmkcr.models.tasks import find_backbone, find_task, search_space

DWCONV = [path for path in CONFIGS if path.startswith('configs/dwconv/')]
SEGMENTORS = [path for path in DWCONV if '/segmentation/' in path]
SMALL = [path for path in DWCONV if 'vit-octo' in path]


def test_found():
    assert len(SEGMENTORS) == 20 and len(SMALL) == 11
    foundation = {Path(path).stem.split('_')[1] for path in DWCONV} - {'vit-octo'}
    assert foundation == {f'{kind}-vit-{size}' for kind in ('dinov2', 'mae', 'clip')
                          for size in ('base', 'large')}


@pytest.mark.parametrize('path', every_nth(3, DWCONV))
def test_model_is_in_the_state_of_its_stage(path, load, put_structure, prepared):
    """Those on the digits are built with data, optimizers and hooks."""
    stage = stage_of(path)
    if path in SMALL:
        runner = build(prepared(path))
        model = runner.model
        check_classes(model, runner.train_dataloader.dataset, 'training')  # as train.py does
        check_run(runner)
        if stage == 'search' and 'kcr-' not in path:
            alpha = next(p for name, p in model.named_parameters() if 'gate.alpha' in name)
            group, = (group for group in runner.optim_wrapper.optimizer.param_groups
                      if any(p is alpha for p in group['params']))
            assert group['initial_lr'] == pytest.approx(1e-2) and not group['weight_decay']
            hook = next(h for h in runner.hooks if type(h).__name__ == 'TemperatureDecayHook')
            assert hook.temperature(10**6) == pytest.approx(1e-3)
    else:
        config = put_structure(load(path))
        with uninitialized():
            model = build_model(config)
    backbone, task = find_backbone(model), find_task(model)
    check_state(path, model, pretrain='dense')
    searched = stage == 'search'
    assert type(model).__name__ == ('SearchModel' if searched else type(task).__name__)
    kinds = [type(site.owner) for site in search_space(model).sites.values()
             if site.kind == 'head_operator']
    if stage in ('replace', 'deploy', 'retrain'):
        assert kinds.count(OperatorAttention) == len(kinds)
    elif searched and 'kcr-' not in path:
        assert kinds.count(MixedAttention) == len(kinds)
        gate = next(iter(backbone.gates().values()))
        assert gate.count == len(kinds) // 2
    channels = backbone.embed_dims
    head = task.decode_head if path in SEGMENTORS else task.head
    assert head.in_channels == channels
    if 'vit-octo' not in path:
        assert backbone.patch_resolution in ((24, 24), (21, 21)) and not backbone.with_cls_token


@pytest.mark.parametrize('path', [path for path in DWCONV if 'vit-octo' not in path
                                  and stage_of(path) == 'dense'])
def test_all_that_is_pretrained_is_kept(path, load):
    """All but the class token, which these networks do not have; and no norm is new."""
    config = load(path)
    backbone = config.model.backbone
    kwargs = {key: backbone[key] for key in ('patch_size', 'layer_scale_init_value', 'pre_norm')
              if key in backbone}
    with uninitialized():
        ours = set(build_model(config).backbone.state_dict())
        theirs = set(VisionTransformer(arch=backbone.arch.replace('dinov2-', ''), **kwargs)
                     .state_dict())
    assert theirs - ours == {'cls_token'} and ours <= theirs and 'ln1.weight' in ours


@pytest.mark.parametrize('stage', ['dense', 'replace'])
def test_linear_evaluation_is_an_option(stage, load, put_structure):
    """With `model.backbone.frozen_stages=12` the classifier and the new convolutions learn."""
    path = f'configs/dwconv/imagenet/dwconv-{stage}_dinov2-vit-base_8xb64_in1k.py'
    config = put_structure(load(path))
    config.model.backbone.frozen_stages = 12
    with uninitialized():
        backbone = find_backbone(build_model(config))
    trained = {name for name, p in backbone.named_parameters() if p.requires_grad}
    assert all('.operator.' in name for name in trained)
    assert ('layers.0.attn.operator.conv.weight' in trained) == (stage == 'replace')


@pytest.mark.parametrize('path', [path for path in DWCONV if 'kcr-dwconv-search' not in path])
def test_second_fine_tuning_is_half_as_long(path, load):
    config, stage = load(path), stage_of(path)
    length = config.train_cfg.get('max_epochs') or config.train_cfg.max_iters
    assert config.param_scheduler[-1].end == length
    assert config.auto_scale_lr.base_batch_size in (8, 16, 64, 512)
    if stage == 'replace':
        first = load(path.replace('replace', 'dense'))
        whole = first.train_cfg.get('max_epochs') or first.train_cfg.max_iters
        assert 2 * length == whole
        name = f'{"epoch" if "max_epochs" in first.train_cfg else "iter"}_{whole}.pth'
        assert name in Path(path).read_text()
        dense = Path(path).stem.replace('replace', 'dense')
        assert config.load_from == f'work_dirs/{dense}/slim/subnet.pth'


@pytest.mark.parametrize('path', SEGMENTORS)
def test_training_and_test_see_crops_of_one_size_at_one_scale(path, load):
    config = load(path)
    model = task_of(config)
    size = tuple(model.data_preprocessor.size)
    image = model.backbone.get('backbone', model.backbone).img_size
    assert size == (image, image)
    crops = {tuple(crop.crop_size) for crop in transforms(config, 'train', 'RandomCrop')}
    assert crops == {size}
    if 'digit-scenes' in path:  # whole images of that size
        assert model.test_cfg.mode == 'whole'
    else:
        assert model.test_cfg.mode == 'slide' and tuple(model.test_cfg.crop_size) == size
    scales = {tuple(step.scale) for part, name in (
        ('train', 'RandomResize'), ('val', 'Resize'), ('test', 'Resize'))
              for step in transforms(config, part, name)}
    assert len(scales) == 1


README = (ROOT / 'configs/dwconv/README.md').read_text()
LARGE = 'dwconv-fcn_dinov2-vit-large_dense_8xb2_coco-stuff'


def paper_rows():
    """Config, options and replaced units of every row of the README that is an option."""
    for line in README.splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        found = re.search(r'(\d+) of (\d+)$', cells[3 if cells[0][:2] in ('CB', 'IL') else 0])
        options = re.search(r'not run: `((?:--|compression)[^`]*)`', line)
        if found and options:
            config = cells[1].strip('`') if cells[0][:2] in ('CB', 'IL') else LARGE
            yield pytest.param(config, options[1], *map(int, found.groups()),
                               id=f'{config}-{options[1]}')


def test_the_rows_of_the_papers_tables_are_there():
    rows = [row.values for row in paper_rows()]
    assert {row[2:] for row in rows} >= {(10, 24), (12, 24), (16, 24), (17, 24), (7, 24), (6, 12),
                                         (192, 384)}
    for which in ('highest', 'random'):
        assert {10, 12, 16} <= {row[2] for row in rows if f'--which {which}' in row[1]}
    assert all(f'| {row} |' in README for row in ('CB1', 'CB2', 'CB3', *(f'IL{i}' for i in
                                                                         range(1, 6))))


@pytest.mark.parametrize('name, options, replaced, units', every_nth(4, paper_rows()))
def test_rows_that_are_options_are_built(name, options, replaced, units, load, tmp_path):
    """The command's options as written, from scores that are drawn at random."""
    path = next(path for path in CONFIGS if Path(path).stem == name)
    if options.startswith('compression'):
        given = dict(option.split('=') for option in options.split())
        config = load_config(ROOT / path.replace('_dense_', '_search_'),
                             {key: yaml.safe_load(value) for key, value in given.items()})
        with uninitialized():
            space = search_space(build_model(config))
        gates = list(space.gates().values())
        assert {gate.count for gate in gates} == {replaced}
        assert sum(1 if gate.blockwise else gate.total for gate in gates) == units
        return
    tool = load_tool('analysis_tools/score_heads')
    with uninitialized():
        space = find_backbone(build_model(load(path))).search_space
    scores = {site: torch.rand(total).tolist() for site, total in space.totals().items()}
    (tmp_path / 'scores.json').write_text(json.dumps(dict(scores=scores)))
    words = options.split() + ([] if '--replace' in options else ['--replace', '12'])
    args = tool.make_parser().parse_args(
        [path, *words, '--scores', str(tmp_path / 'scores.json')])
    structure = space.structure_for(choose_heads(space.sites, tool._choice(args)))
    gone = [site.total - len(site.kept) for site in structure.sites.values()]
    scattered = '--scattered' in options
    assert (sum(gone) if scattered else sum(map(bool, gone))) == replaced
    assert (sum(site.total for site in structure.sites.values()) if scattered
            else len(gone)) == units
    assert {site.operator for site in structure.sites.values() if len(site.kept) < site.total} \
        == {args.operator}
    with uninitialized():
        space.slice_to(structure)
    operators = {type(site.owner.operator) for site in space.sites.values()} - {type(None)}
    assert operators == {OPERATORS[args.operator]}
