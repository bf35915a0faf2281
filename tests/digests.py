"""Digests of compressed, searched, slimmed and exported networks, and of every config.

No test: run it before and after a change that should not alter what is computed.

    python tests/digests.py write FILE [--only NAME ...]
    python tests/digests.py compare OLD NEW
    python tests/digests.py check FILE [--only NAME ...]     # writes to a temporary file, compares

A digest holds the structure file without its provenance, MACs, and sketches of every tensor of the
state_dict and of the outputs on fixed images. Sketches (mean, root mean square, two projections)
are equal up to 1e-4 of the root mean square, so that another order of fp32 sums does not show. A
case that fails is recorded with its error, and differs.

The baseline is made by this script in a checkout of the commit 36fb82e, which knows nothing of it:

    git worktree add /tmp/base 36fb82e && cp tests/digests.py /tmp/base/tests/
    cd /tmp/base && PYTHONPATH=. python tests/digests.py write /tmp/digests_base.json

It needs the packages of requirements/tests.txt and, for `compress/dinov2`, transformers.
"""

import argparse
import contextlib
import functools
import hashlib
import importlib
import io
import json
import os
import runpy
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
#: Relative to the root mean square of a tensor.
TOLERANCE = 1e-4
#: Temporary files: what was searched is slimmed, and some of that exported.
WORK = Path()
VIT = dict(embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=64)
SEARCHES = dict(kcr='kcr-search_swin-mini', dcs='dcs-search_mobilevit-mini',
                ofb='ofb-search_vit-mini', dwconv='dwconv-search_vit-octo')
TARGETS = dict(kcr='80%', dcs='80%', ofb='70%', dwconv=None)
EXPORTS = dict(kcr=('kcr-deploy_swin-mini', 'any'), ofb=('ofb-retrain_vit-mini', 'onnxruntime'))


def api(name, *homes):
    """A function of this package, wherever this commit has it."""
    for home in ('mmkcr', 'mmkcr.apis', *homes):
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(home), name)
    raise ImportError(f'expected `{name}` in one of the known places, found none')


def randomised(model):
    """Weights and statistics drawn in the order of their names."""
    generator = torch.Generator().manual_seed(0)

    def draw(tensor, low, high):
        tensor.data.copy_(low + (high - low) * torch.rand(tensor.shape, generator=generator))

    for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
        if not tensor.is_floating_point():
            continue
        if name.endswith('running_var'):
            draw(tensor, 0.5, 1.5)
        elif isinstance(tensor, torch.nn.Parameter) and tensor.ndim > 1:
            bound = (3 / max(tensor[0].numel(), 1))**0.5
            draw(tensor, -bound, bound)
        elif isinstance(tensor, torch.nn.Parameter):
            draw(tensor, *((0.5, 1.5) if name.endswith('weight') else (-0.5, 0.5)))
    model.eval()
    return model


def images(count, size, seed=0):
    """Random images with structure: a coarse pattern and some noise."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 3, size // 8, size // 8, generator=generator)
    noise = torch.randn(count, 3, size, size, generator=generator)
    return torch.nn.functional.interpolate(coarse, size=(size, size)) + 0.3 * noise


# Networks

def registered(kind, **arguments):
    """A backbone by its name in a registry."""
    from mmengine.registry import MODELS
    importlib.import_module(f'{kind.partition(".")[0]}.models')
    return MODELS.build(dict(type=kind, **arguments))


def of_timm(name, **arguments):
    """A network of timm without its classifier."""
    import timm
    return timm.create_model(name, pretrained=False, num_classes=0, **arguments)


def dinov2():
    """Of Hugging Face."""
    import transformers
    return transformers.Dinov2Model(transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2, image_size=64,
        patch_size=16))


def task_model(path, change):
    """A task model of a shipped config."""
    from mmengine.config import Config
    from mmengine.registry import MODELS, init_default_scope
    config = Config.fromfile(ROOT / 'configs' / path)
    change(config.model)
    init_default_scope(config.default_scope)
    for library in {config.default_scope, 'mmpretrain', 'mmkcr'}:
        importlib.import_module(f'{library}.models')
    return MODELS.build(config.model)


def smaller_mask_rcnn(model):
    """Fewer channels and proposals."""
    model.neck.out_channels = model.rpn_head.in_channels = 16
    model.rpn_head.feat_channels = 12
    head = model.roi_head
    for part in (head.bbox_roi_extractor, head.mask_roi_extractor):
        part.out_channels = 16
    head.bbox_head.update(in_channels=16, fc_out_channels=24, num_classes=3)
    head.mask_head.update(in_channels=16, conv_out_channels=12, num_classes=3)
    for config in (model.train_cfg.rpn_proposal, model.test_cfg.rpn):
        config.update(nms_pre=20, max_per_img=10)


def detection_batches(count):
    """Batches as a data preprocessor gives them."""
    from mmdet.structures import DetDataSample
    from mmengine.structures import InstanceData
    shape = (64, 64)

    def sample():
        found = DetDataSample(metainfo=dict(
            img_shape=shape, ori_shape=shape, pad_shape=shape, batch_input_shape=shape,
            scale_factor=(1., 1.)))
        found.gt_instances = InstanceData(bboxes=torch.zeros(0, 4), labels=torch.zeros(0).long())
        return found

    return [dict(inputs=images(2, 64, seed), data_samples=[sample() for _ in range(2)])
            for seed in range(count)]


SWIN = dict(embed_dims=16, depths=[2, 2], num_heads=[2, 4])
#: Builder, size of images, target and options of `compress` by name.
NETWORKS = dict(
    vit=(lambda: registered('mmpretrain.VisionTransformer', arch=VIT, img_size=64, patch_size=16,
                            out_type='featmap'), '75%', dict()),
    vit_kcr=(lambda: registered('mmpretrain.VisionTransformer', arch=VIT, img_size=64,
                                patch_size=16, out_type='featmap'), '80%',
             dict(sites=['mlp_channels', 'heads'])),
    swin=(lambda: registered('mmpretrain.SwinTransformer', arch=SWIN, img_size=64, window_size=4,
                             out_indices=[0, 1], pad_small_map=True), '60%', dict()),
    efficientvit=(lambda: registered('mmkcr.EfficientViT', arch=dict(
        widths=[8, 16, 24], depths=[1, 1, 1], head_dim=8, attention_stages=1)), '70%', dict()),
    mobilevit=(lambda: registered('mmpretrain.MobileViT', arch=[
        ['mobilenetv2', 8, 1, 1, 1], ['mobilenetv2', 8, 2, 1, 1],
        ['mobilevit', 16, 2, 16, 32, 2, 1]], stem_channels=8, last_exp_factor=2,
        out_indices=(2, )), '80%', dict(cost='params')),
    beit=(lambda: registered('mmpretrain.BEiTViT', arch=VIT, img_size=64, patch_size=16),
          '75%', dict(uniform=True)),
    eva02=(lambda: of_timm('eva02_tiny_patch14_224', img_size=56, embed_dim=32, depth=2,
                           num_heads=4), '70%', dict()),
    dinov3=(lambda: of_timm('vit_small_patch16_dinov3', img_size=64, embed_dim=32, depth=2,
                            num_heads=4), '70%', dict()),
    dinov2=(dinov2, '75%', dict(refit='none')),
    upernet=(lambda: task_model(
        'kcr/segmentation/kcr-upernet_swin-mini_dense_1xb8_digit-scenes.py', lambda model: None),
        '90%', dict()),
    mask_rcnn=(lambda: task_model(
        'kcr/detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py', smaller_mask_rcnn),
        '70%', dict(scope='model', part='model', least_images=2, probe_images=2)))


# Digests

def sketch(tensor):
    """Shape, type, mean, root mean square and two projections of a tensor."""
    values = tensor.detach().double().flatten()
    generator = torch.Generator().manual_seed(len(values))
    found = [float(values.mean()), float(values.square().mean().sqrt())] if len(values) else []
    found += [float(torch.randn(len(values), generator=generator).double() @ values
                    / len(values)**0.5) for _ in range(2)]
    return dict(shape=list(tensor.shape), dtype=str(tensor.dtype).removeprefix('torch.'),
                sketch=[float(f'{value:.8g}') for value in found])


def structure_digest(structure):
    """A structure file without what varies from run to run."""
    structure = json.loads(json.dumps(structure))
    return {key: value for key, value in structure.items() if key != 'provenance'}


def of_state(state):
    """Sketches by key."""
    return {key: sketch(value) for key, value in state.items() if isinstance(value, torch.Tensor)}


def tensors(value):
    """All tensors in nested outputs."""
    if isinstance(value, torch.Tensor):
        return [value]
    value = list(value.values()) if isinstance(value, dict) else value
    return [one for part in value for one in tensors(part)] if isinstance(
        value, (list, tuple)) else []


def compressed(name):
    """`compress` of a small network."""
    build, target, options = NETWORKS[name]
    torch.manual_seed(0)
    model = randomised(build())
    size = 56 if name == 'eva02' else 64
    data = detection_batches(3) if name == 'mask_rcnn' else images(16, size)
    result = api('compress')(model, data, target, input_shape=(3, size, size), progress=False,
                             **{'divisor': 2, **options})
    subnet = getattr(result, 'model', result)
    subnet.eval()
    with torch.no_grad():
        found = getattr(subnet, 'backbone', subnet)(images(2, size, 7))
        if name == 'upernet':
            found = [found, subnet(images(2, size, 7))]
        elif name == 'mask_rcnn':
            found = [found, *subnet.rpn_head(subnet.neck(found))]
    return dict(structure=structure_digest(result.structure.to_dict()),
                agreement={key: dict(value=value) for key, value in result.agreement.items()},
                macs=api('count_macs')(getattr(subnet, 'backbone', subnet), (3, size, size)),
                state=of_state(subnet.state_dict()), outputs=[sketch(x) for x in tensors(found)])


def command(*words):
    """Run ``python -m mmkcr``, or a tool, in this process."""
    words, argv = list(map(str, words)), sys.argv
    output = io.StringIO()
    sys.argv = words
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            if words[0].endswith('.py'):
                sys.path.insert(0, str(Path(words[0]).resolve().parent))
                runpy.run_path(words[0], run_name='__main__')
            else:
                runpy.run_module(words[0], run_name='__main__')
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f'{" ".join(words)}: {stop.code} {output.getvalue()[-2000:]}'
                               ) from None
    finally:
        sys.argv = argv
    return output.getvalue()


@functools.lru_cache(maxsize=None)
def digits():
    """The folder of the digits."""
    command(ROOT / 'tools/dataset_converters/digits.py', '--out', WORK / 'digits',
            '--train-scenes', 10, '--val-scenes', 10)
    return WORK / 'digits'


def config_of(name):
    """Path of a config for the digits."""
    return ROOT / f'configs/{name.partition("-")[0]}/digits/{name}_1xb64_digits.py'


@functools.lru_cache(maxsize=None)
def searched_files(method):
    """The checkpoint of a search of ten iterations."""
    out, loader = WORK / f'search-{method}', 'train_dataloader'
    roots = [f'{part}_dataloader.dataset.data_root={digits()}/' for part in ('train', 'val')]
    command('mmkcr', 'search', config_of(SEARCHES[method]), '--work-dir', out, '--cfg-options',
            'randomness.seed=0', 'randomness.deterministic=True',
            f'{loader}.batch_size=8', f'{loader}.num_workers=0',
            f'{loader}.persistent_workers=False', *roots,
            f'{loader}.dataset.indices={list(range(0, 1280, 16))}'.replace(' ', ''),
            'train_cfg.max_epochs=1', 'train_cfg.val_interval=5', 'load_from=None',
            'log_level=ERROR')
    return out / 'epoch_1.pth'


def searched(method):
    """Weights and gates of a search, and what it logged."""
    state = torch.load(searched_files(method), map_location='cpu', weights_only=False)
    logs = state['message_hub']['log_scalars']
    logged = {name: [dict(value=float(value)) for value in buffer.data[0]]
              for name, buffer in logs.items() if not name.endswith(('time', 'memory', 'eta'))}
    return dict(iterations=state['meta']['iter'], logged=logged, state=of_state(
        state['state_dict']))


@functools.lru_cache(maxsize=None)
def slimmed_files(method):
    """The folder of a subnet."""
    out = WORK / f'slim-{method}'
    target = ['--target-macs', TARGETS[method]] if TARGETS[method] else []
    command('mmkcr', 'slim', config_of(SEARCHES[method]), searched_files(method), '--out', out,
            '--shape', 32, 32, *target)
    return out


def slimmed(method):
    """Structure and weights of the subnet of a search."""
    folder = slimmed_files(method)
    state = torch.load(folder / 'subnet.pth', map_location='cpu', weights_only=False)
    return dict(structure=structure_digest(json.loads((folder / 'structure.json').read_text())),
                state=of_state(state.get('state_dict', state)))


def exported(method):
    """Inputs, outputs and numbers of an ONNX file."""
    import onnxruntime
    deploy, runtime = EXPORTS[method]
    folder, file = slimmed_files(method), WORK / f'{method}.onnx'
    command('mmkcr', 'export', config_of(deploy), folder / 'subnet.pth', '--out', file,
            '--runtime', runtime, '--shape', 32, 32, '--repeats', 0, '--cfg-options',
            f'model.backbone.structure={folder}/structure.json')
    session = onnxruntime.InferenceSession(str(file), providers=['CPUExecutionProvider'])
    ports = {port.name: [str(side) for side in port.shape]
             for port in (*session.get_inputs(), *session.get_outputs())}
    meta = session.get_modelmeta().custom_metadata_map
    outputs = {str(count): [sketch(torch.from_numpy(out)) for out in session.run(
        None, {session.get_inputs()[0].name: images(count, 32, 7).numpy()})] for count in (1, 3)}
    return dict(ports=ports, macs=meta.get('mmkcr.macs'), outputs=outputs)


def configs():
    """A short hash of every key of what every config stands for."""
    from mmengine.config import Config
    expand = api('expand_compression', 'mmkcr.engine.compressed_config', 'mmkcr.engine')
    found = {}
    for path in sorted((ROOT / 'configs').rglob('*.py')):
        if '_base_' in path.parts:
            continue
        try:
            resolved = expand(Config.fromfile(path)).to_dict()
        except Exception as error:
            found[path.stem] = dict(error=f'{type(error).__name__}: {error}')
            continue
        found[path.stem] = {key: hashlib.sha256(json.dumps(
            value, sort_keys=True, default=str).encode()).hexdigest()[:8]
            for key, value in resolved.items()}
    return found


CASES = {
    **{f'compress/{name}': functools.partial(compressed, name) for name in NETWORKS},
    **{f'search/{name}': functools.partial(searched, name) for name in SEARCHES},
    **{f'slim/{name}': functools.partial(slimmed, name) for name in SEARCHES},
    **{f'export/{name}': functools.partial(exported, name) for name in EXPORTS},
    'configs': configs}


def digest(only):
    """Digests of the cases whose names begin with one of some words."""
    found = {}
    os.chdir(ROOT)
    for name, case in CASES.items():
        if only and not name.startswith(tuple(only)):
            continue
        start = time.perf_counter()
        try:
            found[name] = case()
        except Exception as error:
            traceback.print_exc()
            found[name] = dict(error=f'{type(error).__name__}: {error}')
        print(f'{name}: {time.perf_counter() - start:.1f} s', flush=True)
    return found


def differences(old, new, where=''):
    """Where two digests differ, in one line each."""
    if isinstance(old, dict) and isinstance(new, dict):
        if old.keys() == new.keys() and 'sketch' in old:
            pairs = zip(old['sketch'], new['sketch'])
            scale = max(abs(old['sketch'][1]) if len(old['sketch']) > 2 else 0., 1e-12)
            error = max((abs(a - b) for a, b in pairs), default=0.) / scale
            same = old['shape'] == new['shape'] and old['dtype'] == new['dtype']
            if not same:
                yield f'{where}: {old["shape"]} {old["dtype"]}, now {new["shape"]} {new["dtype"]}'
            elif not error <= TOLERANCE:
                yield f'{where}: differs by {error:.2g} of its size'
        elif old.keys() == new.keys() == {'value'}:
            first, second = old['value'], new['value']
            if not abs(first - second) <= TOLERANCE * max(abs(first), 1e-3):
                yield f'{where}: {first:.6g}, now {second:.6g}'
        else:
            for key in sorted({*old, *new}):
                if key not in old or key not in new:
                    yield f'{where}/{key}: {"new" if key in new else "gone"}'
                else:
                    yield from differences(old[key], new[key], f'{where}/{key}')
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and any(
            isinstance(value, dict) for value in old):
        for index, (first, second) in enumerate(zip(old, new)):
            yield from differences(first, second, f'{where}/{index}')
    elif old != new:
        yield f'{where}: {str(old)[:60]}, now {str(new)[:60]}'


def compare(old, new, most=8):
    """Print differences, at most some a case; the exit status."""
    count = 0
    for name in new:
        found = list(differences(old.get(name), new[name], name))
        count += len(found)
        print('\n'.join(found[:most] + (
            [f'{name}: {len(found) - most} more'] if len(found) > most else []) or [
                f'{name}: same']))
    return int(count > 0)


def main():
    """Write, compare, or both."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    commands = parser.add_subparsers(dest='command', required=True)
    for name in ('write', 'check'):
        part = commands.add_parser(name)
        part.add_argument('file', type=Path)
        part.add_argument('--only', nargs='+', default=[], help=' '.join(CASES))
    part = commands.add_parser('compare')
    part.add_argument('old', type=Path)
    part.add_argument('new', type=Path)
    args = parser.parse_args()
    if args.command == 'compare':
        sys.exit(compare(*(json.loads(file.read_text()) for file in (args.old, args.new))))
    torch.set_num_threads(1)
    import mmkcr  # noqa: F401  (before any host library: the baseline prepares them here)
    with contextlib.suppress(ImportError):  # of the baseline
        hosts = importlib.import_module('mmkcr.hosts')
        hosts.ensure_torchvision()
        hosts.prepare_hosts()
    with tempfile.TemporaryDirectory() as folder:
        globals()['WORK'] = Path(folder)
        found = digest(args.only)
    if args.command == 'check':
        sys.exit(compare(json.loads(args.file.read_text()), found))
    args.file.write_text(json.dumps(found, indent=0) + '\n')


if __name__ == '__main__':
    main()
