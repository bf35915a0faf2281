"""Searches and distillation without labels: the task is to have the dense network's tokens.

Gates, prices, regularisers, loops and hooks are those of ``configs/_base_/methods``. Learning rates
of gates are such that rate times steps is what the configs of the digits have.
"""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmkcr.apis.compress_files import write_sensitivity
from mmkcr.closed_form.compression import compress
from mmkcr.core import Structure
from mmkcr.distillation import DistilOptions, distil
from mmkcr.distillation.augmentation import augment
from mmkcr.engine.compressed_config import expand_compression
from mmkcr.methods.search.slimming import slim
from mmkcr.models import Searchable
from mmkcr.models.counting import count_macs
from mmkcr.models.head_choice import find_head_sites, select_heads
from mmkcr.models.tasks import search_space
from mmkcr.registry import MODELS
from .head_scores import HeadStatistics
from .saliency import tokens

#: Options of timm's backbones that return all tokens, of images of any size.
ALL_TOKENS = dict(global_pool='', dynamic_img_size=True)
#: Images of a batch of a search.
BATCH = 4
#: Of weights in a search. So few steps of higher rates destroy more than they teach.
RATE = 1e-5
#: Images that distillation is judged by, and that gates' scores are computed on.
JUDGED, SCORED = 16, 64
BASES = Path(__file__).resolve().parents[2] / 'configs/_base_/methods'


class Search(NamedTuple):
    """How one paper searches.

    Args:
        base (str): File of :data:`BASES`.
        rate (float): Rate of the gates times steps, as in the configs of the digits.
        batches (int): Batches that a step sees: one for the gates and one for the weights.
        settings (dict): Over ``compression`` of the base.
        cut (bool): The gates are cut at the target at the end; otherwise the search decides.
        scored (bool): The gates begin with scores of the closed form.
    """

    base: str
    rate: float
    batches: int
    settings: Mapping[str, Any]
    cut: bool = True
    scored: bool = True


#: By name. Half open gates and a price of 0.3 as on the digits.
SEARCHES: Mapping[str, Search] = {
    'kcr': Search('kcr_search', 5., 2, dict(gates=dict(init=0.5), price=dict(weight=0.3))),
    'dcs': Search('dcs_search', 5., 2, dict(gates=dict(init=0.5), price=dict(weight=0.3))),
    'ofb': Search('ofb_search', 18., 1, {}, cut=False),
    'dsp': Search('dwconv_search', 5., 1, {}, cut=False, scored=False)}


class TeacherTask(BaseModel):
    """A backbone whose tokens are to be those of a dense one.

    Args:
        backbone (nn.Module): Returns all tokens (B, N, C).
        teacher (nn.Module): Dense, in eval mode; its weights are not in the state.
    """

    def __init__(self, backbone: nn.Module, teacher: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self._teacher = [teacher]
        self._steps = 0

    def init_weights(self) -> None:
        """Leave all as it is: MMEngine's runner would have the networks draw new weights."""

    def forward(self, inputs: Tensor, data_samples: Any = None, mode: str = 'tensor') -> Any:
        """Tokens, or in the mode ``'loss'`` their squared error over the variance of the right
        ones, on augmented images.

        Args:
            inputs (Tensor): Images (B, 3, H, W).
            data_samples (Any): None.
            mode (str): ``'tensor'`` or ``'loss'``.
        """
        if mode != 'loss':
            return tokens(self.backbone, inputs)
        inputs = augment(inputs, torch.Generator().manual_seed(self._steps))
        self._steps += 1
        with torch.no_grad():
            wanted = tokens(self._teacher[0], inputs)
        return dict(loss_features=F.mse_loss(tokens(self.backbone, inputs), wanted) / wanted.var())


class _Crops(Dataset):
    """Images as a data set of MMEngine's runner."""

    def __init__(self, images: Tensor) -> None:
        self.images, self.pipeline = images, Compose([])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.pipeline(dict(inputs=self.images[index]))


def run_config(method: str, steps: int, target: int, scores: Path | None,
               shape: tuple[int, ...], images: int) -> Config:
    """Config of a run: that of the method's base, for iterations.

    Args:
        method (str): Of :data:`SEARCHES`.
        steps (int): Of the gates.
        target (int): MACs.
        scores (Path, optional): File that the gates begin with.
        shape (tuple[int, ...]): (C, H, W) that MACs are counted for.
        images (int): Of the data set.
    """
    settings, rate = SEARCHES[method], SEARCHES[method].rate / steps
    config = Config(dict(
        model=dict(type='task', backbone=dict(type='dense')), default_scope='mmkcr',
        optim_wrapper=dict(type='OptimWrapper', clip_grad=dict(max_norm=1.), optimizer=dict(
            type='AdamW', lr=RATE, weight_decay=0.)),
        param_scheduler=[dict(type='CosineAnnealingLR', T_max=steps, by_epoch=False)],
        train_cfg=dict(by_epoch=False, max_iters=steps)))
    base = Config.fromfile(BASES / f'{settings.base}.py').compression
    config.merge_from_dict(dict(compression=base))
    config.merge_from_dict(dict(compression=dict(
        settings.settings, scores=scores and str(scores), input_shape=shape)))
    if method == 'dsp':  # one optimizer: the base's factor would be on the weights' rate
        config.compression.paramwise['gate.alpha'].lr_mult = rate / RATE
    else:
        config.compression.target = target
        config.merge_from_dict(dict(compression=dict(architecture=dict(lr=rate))))
    if method == 'kcr':
        # the features are the teacher's, so the term must not grow with their scale; fewer
        # landmarks and refreshes, and none of a validation set
        config.compression.regularizers.kcr.scale_free = True
        config.custom_hooks = [dict(
            type='mmkcr.NystromRefreshHook', landmarks=min(128, images // 2), pipeline=[],
            by_epoch=False, interval=max(2, steps // 3))]
    return expand_compression(config)


def search(method: str, build: Callable[[], nn.Module], images: Tensor, count: int, target: int,
           scores: Path | None = None, size: int = 224) -> tuple[nn.Module, Structure]:
    """Search a subnet with the teacher's tokens as the task.

    Args:
        method (str): Of :data:`SEARCHES`.
        build (Callable): Returns the dense backbone anew, which gives all tokens.
        images (Tensor): Without labels, (N, 3, H, W).
        count (int): Images that are seen, those for the gates included.
        target (int): MACs; of the search for convolutions the number of blocks.
        scores (Path, optional): File that gates begin with. Defaults to None.
        size (int): Pixels that MACs are counted for. Defaults to 224.

    Returns:
        tuple[nn.Module, Structure]: The subnet with the weights of the search, its structure.
    """
    settings, shape = SEARCHES[method], (3, size, size)
    steps = max(2, count // (BATCH * settings.batches))
    config = run_config(method, steps, target, scores, shape, len(images))
    if method == 'dsp':
        config.model.architecture.backbone.gates.count = target
    torch.manual_seed(0)
    added = dict(config.model.architecture.backbone, backbone=build())
    added.pop('type')
    model = MODELS.build(dict(config.model, architecture=TeacherTask(Searchable(**added),
                                                                     build())))
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(
            model, folder, train_cfg=config.train_cfg, optim_wrapper=config.optim_wrapper,
            param_scheduler=config.param_scheduler, custom_hooks=config.custom_hooks,
            train_dataloader=dict(
                dataset=_Crops(images), batch_size=BATCH, num_workers=0,
                sampler=dict(type='InfiniteSampler', shuffle=True),
                collate_fn=dict(type='default_collate')),
            default_hooks=dict(logger=dict(type='LoggerHook', interval=max(1, steps // 8)),
                               checkpoint=None),
            log_processor=dict(by_epoch=False), randomness=dict(seed=0),
            default_scope='mmkcr', experiment_name=Path(folder).name)
        runner.train()
    found, structure = slim(model, target if settings.cut else None, input_shape=shape)
    return found.backbone, structure


def closed_form_scores(method: str, build: Callable[[], nn.Module], images: Tensor,
                       folder: Path) -> Path | None:
    """A file of what gates begin with: the closed form's order of the units of a method's sites.

    Args:
        method (str): Of :data:`SEARCHES`; None is returned for one whose gates begin without.
        build (Callable): As of :func:`search`.
        images (Tensor): Calibration images.
        folder (Path): Where the file is, or is written.
    """
    if not SEARCHES[method].scored:
        return None
    base = Config.fromfile(BASES / f'{SEARCHES[method].base}.py').compression
    sites = [kind for kind in base.sites if kind != 'qk_mask']
    path = folder / f'{"-".join(sites)}.json'
    if not path.is_file():
        profiles = compress(build(), images[:SCORED], '90%', sites, forward=tokens, refit='none',
                            input_shape=tuple(images.shape[1:]), probe_images=16).profiles
        write_sensitivity(profiles, path)
    return path


def taught(student: nn.Module, teacher: nn.Module, images: Tensor, held_out: Tensor,
           count: int) -> nn.Module:
    """The network after the package's distillation; never worse than it was on held-out images.

    Args:
        student (nn.Module): With all tokens.
        teacher (nn.Module): Dense.
        images (Tensor): Without labels, (N, 3, h, w).
        held_out (Tensor): To judge by, (n, 3, H, W).
        count (int): Images that are seen.
    """
    found = distil(student, teacher, images, max(1, count // DistilOptions.batch_size), tokens,
                   held_out, comparisons=4)
    print(f'best after {found.best} of {found.steps} steps: '
          f'{found.errors[0]:.4f} to {found.errors[found.best]:.4f}', flush=True)
    return found.model


def replaced_heads(backbone: nn.Module, images: Tensor, count: str, which: str,
                   path: Path) -> tuple[nn.Module, Structure]:
    """Depthwise convolutions in place of heads, by the deviation of their attention over images.

    Args:
        backbone (nn.Module): Dense, mmpretrain's; it is changed.
        images (Tensor): To score on, (N, 3, H, W).
        count (str): Such as ``'6b'``, blocks, or ``'36h'``, heads.
        which (str): ``'lowest'``, ``'highest'`` or ``'random'``.
        path (Path): Of the scores, which are read if they are there.
    """
    shape = tuple(images.shape[1:])
    dense = count_macs(backbone, shape)
    space = search_space(Searchable(backbone, ['head_operator']))
    sites = find_head_sites(space.sites)
    if not path.is_file():
        attentions = {name: site.owner for name, site in sites.items()}
        with torch.no_grad(), HeadStatistics(attentions, next(iter(
                sites.values())).grid) as statistics:
            for batch in images.split(8):
                backbone(batch)
        path.write_text(json.dumps({name: values.tolist()
                                    for name, values in statistics.scores().items()}))
    scores = {name: torch.tensor(values) for name, values in json.loads(path.read_text()).items()}
    structure = space.structure_for(
        select_heads(scores, int(count[:-1]), which, count[-1] == 'b'))
    space.slice_to(structure)
    structure.macs = dict(dense=dense, subnet=count_macs(backbone, shape),
                          input_shape=list(shape))
    return backbone, structure
