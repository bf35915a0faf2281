"""A network by what a command is given: a config, or a name of timm or transformers.

``timm::NAME`` is an architecture of timm, ``timm::FOLDER`` and ``transformers::FOLDER`` are folders
of ``save_pretrained``, or of :func:`mmkcr.save`. Nothing is downloaded unless it is asked for; then
``transformers::NAME`` is a name on the hub.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from mmkcr.apis.saved import find_transformers_class, load
from mmkcr.closed_form.compression import call_network
from mmkcr.closed_form.image_folder import FolderImages, draw_images, list_images
from mmkcr.core.checks import did_you_mean, one_line
from mmkcr.core.file_names import HUB_CONFIG, STRUCTURE, WEIGHTS
from mmkcr.core.forward import flat_tensors
from mmkcr.core.structure import read_json
from mmkcr.deploy.smaller_input import set_input_size
from mmkcr.hosts import ensure_torchvision
from mmkcr.models.loading import load_task, weights_of
from mmkcr.models.strict_loading import refuse
from mmkcr.models.tasks import gives_scores
from mmkcr.safe_load import read_checkpoint

#: Libraries whose networks are built without a config.
FOREIGN = ('timm', 'transformers')
#: Side of an image that no library has to say more about, in pixels.
_SIDE = 256


@dataclass(frozen=True)
class Network:
    """A network, and how its images are read.

    Args:
        model (nn.Module): In eval mode, on the CPU.
        shape (tuple[int, int, int]): (C, H, W) of an image.
        transform (Callable, optional): Makes its input (3, H, W) of an image of Pillow. Defaults
            to None: the config reads images, or nothing says how they are read.
        config (Config, optional): Defaults to None: the network has a name.
    """

    model: nn.Module
    shape: tuple[int, int, int]
    transform: Callable[[Image.Image], Tensor] | None = None
    config: Any = None

    def gives_scores(self) -> bool:
        """Whether the output for an image is a score of each class."""
        with torch.no_grad():
            return gives_scores(self.model, flat_tensors(
                call_network(self.model, torch.zeros(1, *self.shape))))


def is_named(network: str | Path | None) -> bool:
    """Whether a command was given a name of timm or transformers, no config."""
    return str(network).partition('::')[0] in FOREIGN and '::' in str(network)


def named_folder(name: str) -> Path:
    """The default folder for what is made of a network with a name."""
    return Path('work_dirs', Path(name.partition('::')[2]).name)


def build_network(name: str, shape: tuple[int, int, int] | None = None,
                  options: Mapping[str, Any] | None = None) -> Network:
    """Build a network with random weights; a folder of :func:`mmkcr.save` with its own.

    Args:
        name (str): A config, ``timm::NAME``, or ``timm::FOLDER`` and ``transformers::FOLDER``.
        shape (tuple, optional): (C, H, W) of an image. Defaults to None: that of the network.
        options (Mapping, optional): Entries of the config to overwrite. Defaults to None.

    Raises:
        FileNotFoundError, ImportError, ValueError: There is no such network; the library is not
            installed; a size that it does not take, or options without a config.
    """
    if is_named(name):
        if options:
            raise ValueError(f'expected a config with `--cfg-options`, found `{name}`')
        return _network_by_name(name, shape, random=True)
    from mmkcr.engine.build import load_config
    return config_network(load_config(name, options), shape)


def config_network(config: Any, shape: tuple[int, int, int] | None = None) -> Network:
    """Build the network of a config that was read (Config), with random weights.

    The ``shape`` (C, H, W) of an image is that of the config by default.
    """
    from mmkcr.engine.build import build_model, default_shape
    model = build_model(config)
    return Network(model, default_shape(config, model, shape), config=config)


def load_network(name: str, checkpoint: str | None = None,
                 shape: tuple[int, int, int] | None = None, pretrained: bool = False,
                 options: Mapping[str, Any] | None = None) -> Network:
    """Build a network with its weights, all of them or none.

    Args:
        name (str): See :func:`build_network`.
        checkpoint (str, optional): File of weights. Defaults to None: ``load_from`` of a config,
            the weights in a folder, or the hub's.
        shape (tuple, optional): (C, H, W) of an image. Defaults to None: that of the network.
        pretrained (bool): Whether the library may fetch weights from a hub. Defaults to False.
        options (Mapping, optional): Entries of the config to overwrite. Defaults to None.

    Raises:
        FileNotFoundError, ImportError, ValueError: See :func:`build_network`; or there are no
            weights, or those of another network.
    """
    if is_named(name):
        if pretrained and checkpoint:
            raise ValueError(f'expected a checkpoint or `--pretrained`, found both for `{name}`')
        return _network_by_name(name, shape, checkpoint, pretrained)
    if pretrained:
        raise ValueError(f'expected a name of {" or ".join(FOREIGN)} with `--pretrained`, found '
                         f'the config `{name}`')
    from mmkcr.engine.build import find_weights, load_weights
    network = build_network(name, shape, options)
    load_weights(network.model, find_weights(network.config, checkpoint, name))
    return network


def load_with_images(name: str, checkpoint: str | None, folder: str | None, count: int,
                     **settings: Any) -> tuple[Network, FolderImages]:
    """Load a named network, and draw images of a folder that are read as the network reads them.

    Args:
        name (str): A name, see :func:`build_network`.
        checkpoint (str | None): File of weights, see :func:`load_network`.
        folder (str | None): Of images, at any depth.
        count (int): Images at most.
        **settings: ``seed`` of the draw, and ``shape`` and ``pretrained`` of :func:`load_network`.

    Raises:
        FileNotFoundError, ImportError, ValueError: See :func:`load_network`; or there are no
            images, or nothing says how they are read.
    """
    if folder is None:
        raise ValueError(f'expected a folder of images (`--calibration FOLDER`) for `{name}`, '
                         'found none')
    paths, seed = list_images(folder), settings.pop('seed')
    network = load_network(name, checkpoint, **settings)
    if network.transform is None:
        raise ValueError(f'expected a network that says how its images are read, by '
                         f'`preprocessor_config.json` in a folder of transformers, found `{name}` '
                         'without')
    places = draw_images(len(paths), count, seed)
    return network, FolderImages([paths[place] for place in places], network.transform)


def _network_by_name(name: str, shape: tuple[int, int, int] | None, checkpoint: str | None = None,
                     pretrained: bool = False, random: bool = False) -> Network:
    """The network of a name, see :func:`load_network`.

    Args:
        name (str): Library and name.
        shape (tuple | None): (C, H, W) of an image; None: that of the network.
        checkpoint (str, optional): File of weights. Defaults to None.
        pretrained (bool): Whether a hub may be asked. Defaults to False.
        random (bool): Whether weights are random. Defaults to False.
    """
    library, _, rest = name.partition('::')
    if find_spec(library) is None:
        raise ImportError(f'expected {library} for `{name}`, found that it is not installed: pip '
                          f'install {library}')
    ensure_torchvision()
    folder = Path(rest).expanduser()
    if (folder / STRUCTURE).is_file():
        network = _load_folder(folder, shape, bool(checkpoint or pretrained))
    else:
        make = _timm_network if library == 'timm' else _transformers_network
        network = make(rest, shape, checkpoint, pretrained, random)
    network.model.eval()
    return network


def _load_folder(folder: Path, shape: tuple[int, int, int] | None, others: bool) -> Network:
    """The network of a folder that :func:`mmkcr.load` reads.

    Args:
        folder (Path): The folder.
        shape (tuple | None): (C, H, W) of an image; None: that which MACs are counted for.
        others (bool): Whether other weights were given, which is refused.
    """
    if others:
        raise ValueError(f'expected the weights in `{folder}`, which is a compressed network, '
                         'found others')
    model = load(folder)
    own = tuple(read_json(folder / STRUCTURE, 'a structure')['macs']['input_shape'])
    if shape is not None and shape != own:
        set_input_size(model, shape[1:])
    return Network(model, shape or own)


def _timm_network(name: str, shape: tuple[int, int, int] | None, checkpoint: str | None,
                  pretrained: bool, random: bool) -> Network:
    """A network of timm. Arguments are those of :func:`_network_by_name`, without the library."""
    import timm
    folder = Path(name).expanduser()
    if folder.is_dir():
        _require_config(folder)
        known, checkpoint = f'local-dir:{folder}', checkpoint or _find_weights(folder, random)
    else:
        known, names = name, [*timm.list_models(), *timm.list_pretrained()]
        if name not in names:
            raise ValueError(f'expected a network of timm, or a folder, after `timm::`, found '
                             f'`{name}`{did_you_mean(name, names)}')
        if not (checkpoint or pretrained or random):
            raise ValueError(f'expected a checkpoint, or `--pretrained`, for `timm::{name}`, found '
                             'neither: its network would be untrained')
    if random or checkpoint is None:
        model = _ask_library(lambda: timm.create_model(known, pretrained=pretrained), name)
    else:
        state = _read_state(checkpoint)
        cfg = _ask_library(lambda: timm.create_model(known), name).pretrained_cfg
        head = state.get(f'{cfg["classifier"]}.weight')
        # of whoever fine-tuned it for other classes
        classes = {} if head is None else dict(num_classes=len(head))
        model = timm.create_model(known, **classes)
        load_task(model, weights_of(dict(state_dict=state), model, checkpoint), checkpoint)
    if folder.is_dir():  # `mmkcr.save` writes them again
        made_with = read_json(folder / HUB_CONFIG, 'a config').get('model_args')
        model.pretrained_cfg = dict(model.pretrained_cfg, model_args=made_with or {})
    own = timm.data.resolve_data_config(model=model)['input_size']
    if shape is not None and tuple(shape[1:]) != tuple(own[1:]):
        set_input_size(model, tuple(shape[1:]))
    size = (own[0], *(shape or own)[1:])
    data = timm.data.resolve_data_config(dict(input_size=size), model=model)
    return Network(model, size, timm.data.create_transform(**data))


def _transformers_network(name: str, shape: tuple[int, int, int] | None, checkpoint: str | None,
                          pretrained: bool, random: bool) -> Network:
    """A network of transformers; arguments as of :func:`_timm_network`."""
    import transformers
    if shape is not None:
        raise ValueError('expected the size of images in the folder of a network of transformers '
                         f'(`preprocessor_config.json`), found `--shape` for `{name}`')
    folder = Path(name).expanduser()
    if folder.is_dir():
        _require_config(folder)
    elif not pretrained:
        raise FileNotFoundError('expected a folder of `save_pretrained`, or a name on the hub with '
                                f'`--pretrained`, after `transformers::`, found `{name}`')
    place = str(folder) if folder.is_dir() else name
    local = dict(local_files_only=not pretrained)
    config = _ask_library(
        lambda: transformers.AutoConfig.from_pretrained(place, **local), name)
    cls = find_transformers_class((config.architectures or [''])[0])
    if random or checkpoint:
        model = cls(copy.deepcopy(config))
        if checkpoint:
            load_task(model, _read_state(checkpoint), checkpoint)
    else:
        if folder.is_dir():
            _find_weights(folder, random)
        model, notes = _ask_library(
            lambda: cls.from_pretrained(place, output_loading_info=True, **local), name)
        refuse(f'the weights of `{cls.__name__}` in `{name}`, found ', dict(
            missing=sorted(notes['missing_keys']), unexpected=sorted(notes['unexpected_keys'])))
    transform, blank = None, Image.new('RGB', (_SIDE, _SIDE))
    if pretrained or (folder / 'preprocessor_config.json').is_file():
        processor = _ask_library(
            lambda: transformers.AutoImageProcessor.from_pretrained(place, **local), name)
        transform = _of_processor(processor)
    side = getattr(config, 'image_size', None) or _SIDE
    sides = (side, side) if isinstance(side, int) else tuple(side)
    size = (3, *sides) if transform is None else tuple(transform(blank).shape)
    return Network(model, size, transform)


def _of_processor(processor: Any) -> Callable[[Image.Image], Tensor]:
    """The transform of an image processor of transformers."""
    return lambda image: processor(images=image, return_tensors='pt')['pixel_values'][0]


def _require_config(folder: Path) -> None:
    """Refuse a folder that does not say how its network is built."""
    if not (folder / HUB_CONFIG).is_file():
        raise FileNotFoundError(f'expected a folder of `save_pretrained` at `{folder}`, found one '
                                f'without `{HUB_CONFIG}`')


def _find_weights(folder: Path, random: bool) -> str | None:
    """The file of weights in a folder of ``save_pretrained``, of which there may be several.

    Args:
        folder (Path): The folder.
        random (bool): Whether the network keeps random weights, so that none are needed.
    """
    if random:
        return None
    files = [path for name in (WEIGHTS, '*.safetensors', '*.bin')
             for path in sorted(folder.glob(name))]
    if not files:
        raise FileNotFoundError(f'expected weights (`{WEIGHTS}`) in `{folder}`, found none: give '
                                'a checkpoint')
    return str(files[0])


def _read_state(path: str) -> dict[str, Tensor]:
    """The weights of a checkpoint, of whichever key training programs keep them under."""
    keys = 'state_dict', 'model'
    content = read_checkpoint(path, keys=keys)
    state = next((content[key] for key in keys if key in content), content)
    return {key.removeprefix('module.'): value for key, value in state.items()}


def _ask_library(call: Callable[[], Any], name: str) -> Any:
    """Result of a call of timm or transformers, whose errors become one sentence.

    Args:
        call (Callable): The call.
        name (str): Of the network, for the message.
    """
    try:
        return call()
    except Exception as error:  # of files, of a hub, and of whatever builds a network
        raise ValueError(f'expected to build and load `{name}`, found that this fails '
                         f'({one_line(error)})') from error
