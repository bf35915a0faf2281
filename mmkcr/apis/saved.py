"""Networks as files: one folder, one line."""

import copy
import dataclasses
import inspect
import json
import platform
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from mmkcr.closed_form.compression import CompressResult
from mmkcr.closed_form.given import copy_network
from mmkcr.core import KEPT, Structure, atomic_folder, digest, eval_mode
from mmkcr.core.checks import one_line
from mmkcr.core.file_names import CONFIG, HUB_CONFIG, REPORT, STRUCTURE, WEIGHTS
from mmkcr.core.products import state_bytes
from mmkcr.core.saved_folder import require_files, write_report
from mmkcr.core.structure import read_json
from mmkcr.deploy.export import export_onnx, export_program
from mmkcr.deploy.export import export_onnx as export
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.lazy import is_of
from mmkcr.models.counting import check_recorded, dense_counts
from mmkcr.models.drop_rates import read_drop_rates, set_drop_rates
from mmkcr.models.loading import load_task
from mmkcr.models.search_space import SearchSpace, leave_ordinary
from mmkcr.models.tasks import keep_randomness
from mmkcr.safe_load import read_checkpoint
from mmkcr.version import __version__

__all__ = ['export', 'load', 'save']


@keep_randomness()
def save(result: CompressResult, folder: str | Path, export: bool = False) -> None:
    """Write a compressed network into a folder that :func:`load` reads.

    The folder is complete or absent. It has ``model.safetensors``, ``structure.json``,
    ``report.json`` (sizes, agreement, options, versions, and the SHA-256 of every file for
    :func:`load` to compare), and how the dense network is built: ``config.json`` of a network of
    transformers or of timm, ``config.py`` of a task model that carries its config (``cfg``), as the
    hosts' ``init_detector``, ``init_model`` and ``get_model`` leave it. The network is built again
    from the folder: if this fails, or its outputs on an image differ, a warning says that
    :func:`load` needs the dense network. A warning names a rate of dropout or stochastic depth that
    :func:`load` cannot give back.

    Args:
        result (CompressResult): Of :func:`~mmkcr.closed_form.compression.compress`.
        folder (str | Path): New, or empty.
        export (bool): Also write ``model.pt2`` (``torch.export``) and ``model.onnx``, for any
            number of images of the size that MACs are counted for. Both are compared with the
            network, and neither needs this package. Defaults to False.

    Raises:
        ExportMismatch: An exported file has other outputs. Nothing is written then.
        ValueError: The folder has content, or the network cannot be exported.

    Examples:
        >>> save(compress(model, images, '60%'), 'slim', export=True)
        >>> model = load('slim')
    """
    model, structure = result.model, result.structure
    shape = structure.macs['input_shape']
    state = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
             for name, value in model.state_dict().items()}
    with atomic_folder(folder) as here:
        structure.save(here / STRUCTURE)
        _write_dense(model, structure, here)
        if (here / CONFIG).is_file():  # by which any command reads the weights, not `load` alone
            prefix = 'backbone.' if _scope(structure) == 'backbone' else ''
            state[f'{prefix}{KEPT}'] = digest(structure.sites)
        save_file(state, here / WEIGHTS)
        library = type(model).__module__.partition('.')[0]
        versions = dict(python=platform.python_version(), torch=str(torch.__version__),
                        mmkcr=__version__)
        if version := getattr(sys.modules.get(library), '__version__', None):
            versions[library] = version
        report = dict(
            macs=structure.macs, params=structure.params, bytes=state_bytes(model),
            agreement=result.agreement, target=structure.provenance.get('target'),
            asked=structure.provenance.get('asked'), drop_rates=read_drop_rates(model),
            versions=versions)
        write_report(report, here)  # as the folder is read again in the next line
        if reason := _not_the_same(model, here, shape):
            for name in (HUB_CONFIG, CONFIG):
                (here / name).unlink(missing_ok=True)
            warnings.warn(f'expected to build the dense `{type(model).__name__}` by its name, '
                          f'found {reason}: load it with `mmkcr.load({str(folder)!r}, dense)`',
                          stacklevel=3)
        if export:
            network = copy.deepcopy(model).cpu()
            export_program(network, here / 'model.pt2', shape)
            export_onnx(network, here / 'model.onnx', shape, dynamic_size=False)
        write_report(report, here)


def _write_json(content: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(content, indent=2) + '\n', encoding='utf8')


def _write_dense(model: nn.Module, structure: Structure, folder: Path) -> None:
    """Write how the dense network is built, as far as the network says it."""
    config = next((hub_config for name in ('cfg', '_config') if is_of(
        hub_config := getattr(model, name, None), 'mmengine.config.Config')), None)
    known = getattr(model, 'pretrained_cfg', None)
    if config is not None:
        from .slim_files import write_config
        structure = dataclasses.replace(structure, backbone=dict(structure.backbone))
        write_config(config, _scope(structure), folder, structure, WEIGHTS)
        structure.save(folder / STRUCTURE)
    elif is_of(model, 'transformers.modeling_utils.PreTrainedModel'):
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
    elif type(model).__module__.startswith('timm.') and known:
        arguments = dict(known.get('model_args', {}), **{name: getattr(model, name) for name in (
            'num_classes', 'global_pool', 'dynamic_img_size') if hasattr(model, name)})
        channels = structure.macs['input_shape'][0]
        if channels != known['input_size'][0]:
            arguments['in_chans'] = channels
        img_size = getattr(getattr(model, 'patch_embed', None), 'img_size', None)
        if img_size is not None and ('img_size' in arguments or tuple(img_size) != tuple(
                known['input_size'][1:])):
            arguments['img_size'] = list(img_size)
        # as timm writes it
        _write_json(dict(architecture=known['architecture'], model_args=arguments),
                    folder / HUB_CONFIG)


@torch.no_grad()
def _not_the_same(model: nn.Module, folder: Path, shape: list[int]) -> str:
    """Why the folder alone does not give this network, or ''."""
    if not any((folder / name).is_file() for name in (HUB_CONFIG, CONFIG)):
        return 'nothing that says it'
    first = next(model.parameters())
    try:
        again = _build(folder, None).to(first.device)
        with eval_mode(model):
            image = torch.rand(1, *shape).to(first)
            outputs, expected = (TensorModel(network)(image) for network in (again, model))
        bound = 100 * torch.finfo(first.dtype).eps
        torch.testing.assert_close(outputs, expected, rtol=bound, atol=bound)
    except Exception as error:  # of whatever builds and runs a network
        return f'that this fails ({one_line(error, 200)})'
    _warn_of_other_rates(read_drop_rates(again), read_drop_rates(model))
    return ''


def _warn_of_other_rates(built: dict[str, float], expected: dict[str, float]) -> None:
    """Name a place where a loaded network drops another share in training, if there is one."""
    places = [place for place in {**expected, **built} if expected.get(place) != built.get(place)]
    if places:
        warnings.warn(f'expected to load the rate {expected.get(places[0], 0)} of `{places[0]}`, '
                      f'found {built.get(places[0], 0)}, and {len(places) - 1} other places whose '
                      'rates differ: set them before the loaded network is trained', stacklevel=5)


@keep_randomness()
def load(folder: str | Path, model: nn.Module | None = None,
         device: str | torch.device = 'cpu') -> nn.Module:
    """Build the network of a folder that ``save`` or ``mmkcr compress`` wrote, with its weights.

    A folder of transformers' ``save_pretrained`` is one, with ``structure.json`` beside it.

    Args:
        folder (str | Path): With ``structure.json`` and ``model.safetensors``; or with
            ``config.py`` and the files that it names; or the path of the config itself.
        model (nn.Module, optional): The dense network, with any weights; it is not changed.
            Defaults to None: the folder says how it is built.
        device (str | torch.device): Where it is put. Defaults to ``'cpu'``.

    Returns:
        nn.Module: The network, in eval mode.

    Raises:
        FileNotFoundError: There is no such folder or config, or no weights.
        ValueError: A file was changed since :func:`save` wrote it, files do not belong together, or
            nothing says how the dense network is built.

    Examples:
        >>> model = load('slim')
        >>> export(model, 'slim.onnx', (3, 224, 224))
    """
    network = _build(Path(folder), model)
    network.to(device)
    return network


def _build(path: Path, model: nn.Module | None) -> nn.Module:
    """See :func:`load`; on the CPU."""
    if model is None and (not path.is_dir() or (path / CONFIG).is_file()):
        from mmkcr.engine.build import build_model, find_weights, load_config, load_weights
        config = load_config(path / CONFIG if path.is_dir() else path)
        model = build_model(config)
        load_weights(model, find_weights(config, None, str(config.filename)))
        return model
    require_files(path, (STRUCTURE, WEIGHTS))
    state = read_checkpoint(path / WEIGHTS)  # first, as this compares the folder with its report
    structure = Structure.load(path / STRUCTURE)
    if model is not None:
        model = copy_network(model)
    else:
        model = _dense(path)
        if (path / REPORT).is_file():
            set_drop_rates(model, read_json(path / REPORT, 'a report').get('drop_rates', {}))
    backbone = getattr(model, 'backbone', None)
    host = backbone if isinstance(backbone, nn.Module) and _scope(structure) == 'backbone' else \
        model
    dense = dense_counts(host, structure)
    space = SearchSpace(host, structure.backbone.get('sites') or ())
    space.put_masks()
    space.slice_to(structure)
    check_recorded(host, structure, model, dense)
    expected = model.state_dict(keep_vars=True)
    if not (path / REPORT).is_file() and (renamed := sorted(set(state) - set(expected))):
        raise ValueError(f'expected entries of the {type(model).__name__} in `{path / WEIGHTS}`, '
                         f'found `{renamed[0]}` and {len(renamed) - 1} others, such as '
                         'transformers 5 writes for version 4: write the folder with '
                         '`mmkcr.save(result, folder)`, or with `save_pretrained(folder, '
                         'save_original_format=False)`')
    # an ordinary network's state does not say its units: `load` has compared the files
    state = {**{name: value for name, value in expected.items() if name.endswith(KEPT)}, **state}
    for name, value in expected.items():
        if name in state:  # loading would keep the type of the new network
            value.data = value.data.to(state[name].dtype)
    load_task(model, state, str(path / WEIGHTS))
    leave_ordinary(model)
    model.eval()  # that of mmpretrain's backbones returns None
    return model


def _scope(structure: Structure) -> str:
    return structure.provenance.get('asked', {}).get('scope', 'backbone')


def _dense(folder: Path) -> nn.Module:
    """The dense network that a folder's ``config.json`` describes, with random weights."""
    given = f'give the dense network: `mmkcr.load({str(folder)!r}, dense)`'
    if not (folder / HUB_CONFIG).is_file():
        raise ValueError(f'expected `{HUB_CONFIG}` or `{CONFIG}` in `{folder}`, which say how the '
                         f'dense network is built, found neither: {given}')
    config: Any = read_json(folder / HUB_CONFIG, 'a config')
    if not isinstance(config, Mapping):
        raise ValueError(f'expected a dict in `{folder / HUB_CONFIG}`, found {config!s:.60}: '
                         f'{given}')
    try:
        return _of_timm(config) if 'architecture' in config else _of_transformers(config, folder)
    except ImportError:
        raise
    except Exception as error:  # of whatever builds a network
        raise ValueError(f'expected a network that can be built in `{folder / HUB_CONFIG}`, found '
                         f'another ({one_line(error, 200)}): {given}') from error


def _of_timm(config: Mapping[str, Any]) -> nn.Module:
    """A network of timm with random weights: arguments that would fetch some are dropped."""
    import timm
    name = config['architecture']
    if not (isinstance(name, str) and timm.is_model(name)):  # nor is an address downloaded
        raise ValueError(f'expected an architecture of timm, found {name!r}')
    fetching = inspect.signature(timm.create_model).parameters  # such as `checkpoint_path`
    return timm.create_model(name, **{
        key: value for key, value in config.get('model_args', {}).items() if key not in fetching})


def _of_transformers(config: Mapping[str, Any], folder: Path) -> nn.Module:
    """A network of transformers with random weights, its inner backbone's too."""
    cls = find_transformers_class((config.get('architectures') or [''])[0])
    return cls(cls.config_class.from_pretrained(folder, use_pretrained_backbone=False))


def find_transformers_class(name: str) -> type[nn.Module]:
    """The class of transformers that ``architectures`` of a config names; others are refused."""
    import transformers
    cls = getattr(transformers, name, None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise ValueError(f'expected a class of transformers, found {name!r}')
    return cls
