"""Distillation: the dense network teaches the compressed one on unlabelled images."""

import copy
import functools
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.dataset import InfiniteSampler
from mmengine.device import get_device
from mmengine.dist import (
    broadcast_object_list,
    get_world_size,
    init_dist,
    is_distributed,
    is_main_process,
)
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from mmkcr.core import atomic_write
from mmkcr.core.forward import flat_tensors
from mmkcr.engine.resume.checkpoints import AtomicCheckpointHook
from mmkcr.models.tasks import unwrap
from .batches import of_size, split_batches
from .compression import called
from .options import Forward
from .replay import map_tensors

BEST = 'best.pth'
#: Unit of the rate of a tensor of zeros.
ZEROS = 0.01


@dataclass(frozen=True)
class DistilOptions:
    """Options of a distillation.

    Args:
        rate (float): Learning rate of each tensor over the root mean square of its values at the
            start, to a power of two, so that small and large ones change alike. Defaults to 5e-4.
        warm_up (float): Share of the steps in which the rate rises from 0. Defaults to 0.1.
        between (int): Number of blocks whose outputs are compared too. Defaults to 3. Gradients
            stop there, so that each window of blocks learns its own outputs: without, the same rate
            destroys more of a refitted DINOv2 than it teaches.
        temperature (float): Tau, for class scores. Defaults to 2.
        average (float): Weights are averaged over about this share of the steps. Defaults to 0.1.
        judged (int): How often the averaged weights are tried on held-out images. Defaults to 10.
        batch_size (int): Images per batch; batches that cannot be taken apart stay. Defaults to 16.
        accumulate (int): Batches per step and process. Defaults to 1.
        amp (bool, optional): Train in bfloat16. Defaults to None: on a GPU.
        augment (bool): Crop, mirror, recolour and mix, see :func:`augmented`. Defaults to True.
        seed (int): Of what is drawn. Defaults to 0.
    """

    rate: float = 5e-4
    warm_up: float = 0.1
    between: int = 3
    temperature: float = 2.
    average: float = 0.1
    judged: int = 10
    batch_size: int = 16
    accumulate: int = 1
    amp: bool | None = None
    augment: bool = True
    seed: int = 0


@dataclass
class DistilResult:
    """Result of :func:`distil`."""

    #: The best network on held-out images; the student itself if none was better.
    model: nn.Module
    #: Of the run.
    steps: int
    #: Distance to the teacher on held-out images by step; step 0 is what it began with.
    errors: dict[int, float]

    @property
    def best(self) -> int:
        """Step of :attr:`model`."""
        return min(self.errors, key=lambda step: (self.errors[step], step))


def distil(student: nn.Module, teacher: nn.Module, images: Tensor | Sequence[Any],
           length: str | int, forward: Forward | None = None,
           held_out: Tensor | Sequence[Any] | None = None, logits: bool = False,
           work_dir: str | Path | None = None, **options: Any) -> DistilResult:
    """Teach a compressed network what its dense one does on unlabelled images.

    MMEngine's ``Runner`` trains: on a GPU if there is one, in several processes under ``torchrun``,
    and a call that is repeated with its ``work_dir`` goes on where it was. The result is never
    worse than what it began with, on held-out images.

    Args:
        student, teacher (nn.Module): The compressed and the dense network; they are not changed.
        images, forward: As of :func:`~mmkcr.closed_form.compression.compress`.
        length (str | int): Number of steps, or a time such as ``'30min'``, ``'2h'`` or ``'90s'``:
            as many steps as that takes at the speed of the first ones.
        held_out (Tensor | Sequence, optional): To judge by. Defaults to None: as of ``compress``.
        logits (bool): See :class:`~mmkcr.closed_form.options.CompressOptions`.
        work_dir (str | Path, optional): Of checkpoints and logs. Defaults to None: a temporary one.
        **options: See :class:`DistilOptions`.

    Raises:
        ValueError: No held-out images, networks with other outputs, or a time too short for a step.
    """
    settings, forward = DistilOptions(**options), forward or called
    length = read_length(length)
    batches, judge = split_batches(images, held_out)
    if judge is batches:
        raise ValueError('expected at least two images or batches to distil, one to judge by, '
                         f'found {len(batches)}')
    batches, judge = (of_size(one, settings.batch_size) for one in (batches, judge))
    launcher = 'pytorch' if int(os.environ.get('WORLD_SIZE', 1)) > 1 else 'none'
    if launcher != 'none' and not is_distributed():
        if torch.cuda.is_available():
            init_dist(launcher, backend='nccl')
        else:  # MMEngine would choose a GPU
            torch.distributed.init_process_group('gloo')
    with ExitStack() as stack:
        folder = Path(work_dir or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        model = DistilModel(student, teacher, forward, settings, logits, judge)
        draws = _Draws(batches, settings, model.data_preprocessor)
        steps = [_steps(length, model, draws, folder, settings)]
        broadcast_object_list(steps)
        hook = _Teacher(length, steps[0], folder, settings)
        runner = _runner(model, draws, hook, steps[0], folder, settings, launcher)
        runner.train()
        best = torch.load(folder / BEST, map_location='cpu')
        errors = dict(runner.message_hub.get_info('distil_errors'))
    result = copy.deepcopy(student)
    result.load_state_dict(best['state_dict'])
    return DistilResult(result, steps[0], errors)


def read_length(length: str | int) -> int | float:
    """Steps as an integer, or a time such as ``'30min'`` in seconds as a float."""
    match = re.fullmatch(r'(\d+(?:\.\d*)?)\s*(s|min|h)?', str(length).strip())
    if not match or float(match[1]) <= 0 or not match[2] and '.' in match[1]:
        raise ValueError("expected a number of steps or a time such as '30min', '2h' or '90s', "
                         f'found {length!r}')
    return float(match[1]) * dict(s=1., min=60., h=3600.)[match[2]] if match[2] else int(match[1])


class DistilModel(BaseModel):
    """A student with the average of its weights, and its teacher, whose weights are not saved.

    All are copies, in the mode ``eval``: nothing is dropped, and batch norms keep their statistics.
    ``judge`` are batches of held-out images.
    """

    def __init__(self, student: nn.Module, teacher: nn.Module, forward: Forward,
                 settings: DistilOptions, logits: bool, judge: Sequence[Any]) -> None:
        super().__init__()
        self.student = copy.deepcopy(student).requires_grad_(True)
        self.average = copy.deepcopy(student).requires_grad_(False)
        self._teacher = [copy.deepcopy(teacher).requires_grad_(False).to(get_device())]
        for network in (self.student, self.average, *self._teacher):
            network.eval()  # that of mmpretrain's backbones returns None
        self.to(get_device())
        self._run, self._settings, self._logits, self._judge = forward, settings, logits, judge
        self._between = common_blocks(self.student, teacher, settings.between)
        with torch.no_grad():  # of all outputs of the teacher, on at most four batches
            outputs = [self._outputs(self._teacher[0], self.data_preprocessor(batch))
                       for batch in judge[:4]]
        self._variances = [sum(out.float().var() for out in outs).clamp(min=1e-12) / len(outs)
                           for outs in zip(*outputs)]

    def train(self, mode: bool = True) -> 'DistilModel':
        """Set the mode of this wrapper alone."""
        self.training = mode
        return self

    def init_weights(self) -> None:
        """Leave all as it is: MMEngine's runner would have the networks draw new weights."""

    @torch.no_grad()
    def judged(self) -> float:
        """Mean distance of the averaged student's outputs to the teacher's, on held-out images."""
        losses = [float(sum(self(self.data_preprocessor(batch), mode='judge').values()))
                  for batch in self._judge]
        return sum(losses) / len(losses)

    def _outputs(self, network: nn.Module, batch: Any) -> list[Tensor]:
        """Outputs of some blocks, where gradients stop, then those that are to agree."""
        caught: dict[str, list[Tensor]] = {}

        def catch(path: str, out: Any) -> Any:
            caught[path] = flat_tensors(out)[:1]
            return map_tensors(out, Tensor.detach)

        with ExitStack() as stack:
            for path in self._between:
                stack.enter_context(network.get_submodule(path).register_forward_hook(
                    lambda _, __, out, path=path: catch(path, out)))
            outputs = flat_tensors(self._run(network, batch))
        return [tensor for path in self._between for tensor in caught.get(path, [])] + outputs

    def forward(self, batch: Any, mode: str = 'loss') -> dict[str, Tensor]:
        """Losses of the student on a batch; in the mode ``'judge'`` of the average."""
        with torch.no_grad():
            wanted = self._outputs(self._teacher[0], batch)
        outputs = self._outputs(self.average if mode == 'judge' else self.student, batch)
        if [one.shape for one in outputs] != [one.shape for one in wanted]:
            raise ValueError('expected a student with outputs of the shapes of its teacher '
                             f'{[tuple(one.shape) for one in wanted]}, found '
                             f'{[tuple(one.shape) for one in outputs]}')
        losses = {}
        if self._logits and mode == 'loss':
            tau = self._settings.temperature
            scores, right = ((one.pop().float() / tau).log_softmax(-1) for one in (outputs, wanted))
            losses['loss_scores'] = tau**2 * F.kl_div(scores, right, reduction='batchmean',
                                                      log_target=True)
        terms = [(one.float() - other.float()).square().mean() / variance
                 for one, other, variance in zip(outputs, wanted, self._variances)]
        if mode == 'judge':  # what the task reads, and nothing else
            terms = terms[min(len(self._between), len(terms) - 1):]
        if terms:
            losses['loss_features'] = torch.stack(terms).mean()
        return losses


def common_blocks(student: nn.Module, teacher: nn.Module, count: int) -> list[str]:
    """Paths of at most ``count`` evenly spaced blocks of both networks, without the last one.

    A block is the first numbered module on the path of a weight that was cut.
    """
    shapes = {name: value.shape for name, value in teacher.named_parameters()}
    cut = [name for name, value in student.named_parameters() if shapes.get(name) != value.shape]
    blocks = list(dict.fromkeys(match[0] for match in (
        re.match(r'(?:[^.]+\.)*?\d+(?=\.)', name) for name in cut) if match))[:-1]
    modules = dict(teacher.named_modules())
    both = [path for path in blocks if path in modules]
    count = min(count, len(both))
    return [both[(2 * i + 1) * len(both) // (2 * count)] for i in range(count)]


class _Draws(Dataset):
    """Augmented batches: the batch at a position, and all that is drawn for it, depend on
    the position alone, so not on processes, nor on where a run was stopped.

    They are moved to the device first, so that a GPU augments.
    """

    def __init__(self, batches: Sequence[Any], settings: DistilOptions,
                 move: Callable[[Any], Any]) -> None:
        self._batches, self._settings, self._move = batches, settings, move

    def __getitem__(self, position: int) -> Any:
        epoch, place = divmod(position, len(self._batches))
        draw = torch.Generator().manual_seed(self._settings.seed * 7919 + epoch)
        place = int(torch.randperm(len(self._batches), generator=draw)[place])
        batch = self._move(self._batches[place])
        if self._settings.augment:
            draw.manual_seed((self._settings.seed + 1) * 1_000_003 + position)
            batch = augmented(batch, draw)
        return batch


def augmented(batch: Any, draw: torch.Generator) -> Any:
    """A batch with its images cropped, mirrored and recoloured; every other batch is mixed.

    Images are (N, C, H, W), or under ``'inputs'`` of a dict; other batches are left as they are.
    """
    if isinstance(batch, Mapping) and isinstance(batch.get('inputs'), Tensor):
        return dict(batch, inputs=augmented(batch['inputs'], draw))
    if not isinstance(batch, Tensor) or batch.ndim != 4 or not batch.is_floating_point():
        return batch

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return (torch.rand(len(batch), *shape, generator=draw) * (high - low) + low).to(batch)

    scale = uniform(0.35, 1.)**0.5
    mirror = uniform(-1, 1).sign()
    theta = torch.zeros(len(batch), 2, 3).to(batch)
    theta[:, 0, 0], theta[:, 1, 1] = scale * mirror, scale
    theta[:, :, 2] = uniform(-1, 1, 2) * (1 - scale)[:, None]
    out = F.grid_sample(batch, F.affine_grid(theta, batch.shape, align_corners=False),
                        padding_mode='border', align_corners=False)
    mean = out.mean((2, 3), keepdim=True)
    gain, shift = uniform(0.6, 1.4, 1, 1, 1), uniform(-0.3, 0.3, out.shape[1], 1, 1)
    out = (out - mean) * gain + mean + shift
    if torch.rand((), generator=draw) < 0.5:
        share = uniform(0., 0.5, 1, 1, 1)
        out = out * (1 - share) + out.roll(1, 0) * share
    return out


class _Teacher(Hook):
    """Sets the rates of a step, averages the weights after it, and keeps the best on the way."""

    priority = 'HIGH'  # before checkpoints

    def __init__(self, length: int | float, steps: int, folder: Path,
                 settings: DistilOptions) -> None:
        self._length, self._steps, self._folder, self._settings = length, steps, folder, settings

    def before_train(self, runner: Runner) -> None:
        """Judge what the run begins with."""
        if runner.iter == 0:
            (self._folder / BEST).unlink(missing_ok=True)
            self._keep_best(runner, 0)

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Set the learning rates."""
        rate = rate_at(runner.iter // self._settings.accumulate, self._steps, self._settings)
        for group in runner.optim_wrapper.optimizer.param_groups:
            group['lr'] = rate * group['unit']

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None,
                         outputs: Any = None) -> None:
        """Average, and judge every so often."""
        step, rest = divmod(runner.iter + 1, self._settings.accumulate)
        if rest:
            return
        model = unwrap(runner.model)
        share = max(1 / (step + 1), 1 / max(2, self._settings.average * self._steps))
        with torch.no_grad():
            torch._foreach_lerp_(list(model.average.parameters()),
                                 list(model.student.parameters()), share)
        if step == self._steps or step % max(1, self._steps // self._settings.judged) == 0:
            self._keep_best(runner, step)

    def _keep_best(self, runner: Runner, step: int) -> None:
        model = unwrap(runner.model)
        error = model.judged()
        errors = dict(runner.message_hub.runtime_info.get('distil_errors', {}))
        better = math.isfinite(error) and all(error < other for other in errors.values())
        errors[step] = error
        runner.message_hub.update_info('distil_errors', errors)
        runner.logger.info(f'step {step} of {self._steps}: distance to the teacher {error:.4f} on '
                           f'held-out images{", the best" if better else ""}')
        if better and is_main_process():
            with atomic_write(self._folder / BEST) as path:
                torch.save(dict(state_dict=model.average.state_dict(), length=self._length,
                                steps=self._steps), path)


def rate_at(step: int, steps: int, settings: DistilOptions) -> float:
    """Learning rate in units of each tensor's: a warm-up, then half a cosine to 0, by steps."""
    return settings.rate * 0.5 * (1 + math.cos(math.pi * step / steps)) * min(
        1., (step + 1) / max(1., settings.warm_up * steps))


def _steps(length: int | float, model: DistilModel, draws: _Draws, folder: Path,
           settings: DistilOptions) -> int:
    """Number of steps, those of the first call if a call is repeated."""
    if isinstance(length, int):
        return length
    if (folder / BEST).is_file() and (folder / 'last_checkpoint').is_file():
        best = torch.load(folder / BEST, map_location='cpu')
        if best.get('length') == length:
            return best['steps']
    for position in range(2):  # the second one counts
        began = time.perf_counter()
        loss = sum(model(model.data_preprocessor(draws[position])).values())
        loss.backward()
        loss.item()
        model.zero_grad(set_to_none=True)
        took = (time.perf_counter() - began) * settings.accumulate
    began = time.perf_counter()
    model.judged()
    steps = int((length - (settings.judged + 1) * (time.perf_counter() - began)) / took)
    if steps < 1:
        raise ValueError(f'expected a time in which a step of {took:.3g} s and '
                         f'{settings.judged + 1} judgements fit, found {length:.0f} s')
    return steps


def _runner(model: DistilModel, draws: _Draws, hook: Hook, steps: int, folder: Path,
            settings: DistilOptions, launcher: str) -> Runner:
    """A runner that trains a model and goes on with what is in its folder."""
    groups: dict[float, list[Tensor]] = {}  # few: each costs a GPU launches of its own
    for value in model.student.parameters():
        unit = float(value.detach().square().mean().sqrt()) or ZEROS
        groups.setdefault(2.**round(math.log2(unit)), []).append(value)
    optimizer = torch.optim.AdamW(
        [dict(params=values, unit=unit) for unit, values in groups.items()], lr=settings.rate,
        weight_decay=0., betas=(0.9, 0.99), fused=torch.cuda.is_available())
    amp = torch.cuda.is_available() if settings.amp is None else settings.amp
    wrapper = functools.partial(AmpOptimWrapper, dtype='bfloat16') if amp else OptimWrapper
    interval = max(1, steps // settings.judged)
    # in the order of their positions, of which processes take turns
    batches = Subset(draws, range(steps * settings.accumulate * get_world_size()))
    sampler = InfiniteSampler(batches, shuffle=False, seed=settings.seed)
    return Runner(
        model, str(folder),
        train_dataloader=DataLoader(batches, sampler=sampler, batch_size=1, collate_fn=tuple),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=steps * settings.accumulate),
        optim_wrapper=wrapper(optimizer=optimizer, accumulative_counts=settings.accumulate),
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=max(1, interval // 5)),
            checkpoint=dict(type=AtomicCheckpointHook, by_epoch=False, max_keep_ckpts=1,
                            interval=interval * settings.accumulate)),
        custom_hooks=[hook], resume=(folder / 'last_checkpoint').is_file(), launcher=launcher,
        log_processor=dict(by_epoch=False), randomness=dict(seed=settings.seed),
        default_scope='mmengine', experiment_name=f'distil_{time.time_ns()}',
        cfg=dict(model_wrapper_cfg=dict(
            type='MMDistributedDataParallel', find_unused_parameters=True,
            broadcast_buffers=False, **({} if torch.cuda.is_available() else dict(
                device_ids=None)))))
