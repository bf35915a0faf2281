"""Closed-form slimming against controls: the same network, budget, images and evaluation."""

import copy
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.runner import Runner
from torch import Tensor, nn

from mmkcr.apis.compress_files import task_outputs
from mmkcr.closed_form.calibration import ReaderMoments, passes
from mmkcr.closed_form.compression import compress, refit_structure
from mmkcr.closed_form.images import calibration_images
from mmkcr.closed_form.options import CompressOptions, searched
from mmkcr.closed_form.readers import Rows, readers
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, default_shape, load_weights
from mmkcr.functional.moments import Moments
from mmkcr.models.sites.base import HostSite
from .torch_pruning import PRUNED, torch_pruning_structure

#: Takes a site, the moments of what its first reader reads, and a generator; returns an order.
Choose = Callable[[HostSite, Moments | None, torch.Generator], Tensor]

def at_random(site: HostSite, moments: Moments | None, generator: torch.Generator) -> Tensor:
    """Units in random order."""
    return _ordered(site, torch.rand(site.total, generator=generator))


def by_weight(site: HostSite, moments: Moments | None, generator: torch.Generator) -> Tensor:
    """Units by the norm of the weights that read them."""
    weight = readers(site)[0].layer.weight.detach().flatten(1)
    return _by_unit(site, weight.square().sum(0))


def by_variance(site: HostSite, moments: Moments, generator: torch.Generator) -> Tensor:
    """Units by their variance, as variance-based pruning does."""
    return _by_unit(site, moments.covariance.diagonal())


def _by_unit(site: HostSite, values: Tensor) -> Tensor:
    reader = readers(site)[0]
    columns = reader.columns(torch.arange(site.total))
    return _ordered(site, values[columns].view(site.total, -1).sum(1))


def _ordered(site: HostSite, scores: Tensor) -> Tensor:
    """Units by their scores, the largest first; the first of every head, then the second ones."""
    places = scores.view(site.rows, -1).argsort(dim=1, descending=True, stable=True)
    return (places + torch.arange(site.rows)[:, None] * places.shape[1]).T.flatten()


def same_sizes(model: nn.Module, like: Structure, choose: Choose, batches: Sequence[Any] = (),
               seed: str = '') -> Structure:
    """A structure with other units, as many in every layer as a given one has.

    Args:
        model (nn.Module): Dense; it is not changed.
        like (Structure): Of the same kinds of site.
        choose (Callable): Gives the order of a site's units; without batches no moments.
        batches (Sequence): Of the data preprocessor. Defaults to none.
        seed (str): Of the generators, beside the sites' names. Defaults to ''.
    """
    model = copy.deepcopy(model)
    model.eval()
    space = searched(model, like.backbone['sites'])
    read = {name: ReaderMoments(readers(site)[0].layer, name, Rows(256), False)
            for name, site in space.sites.items()} if batches else {}
    for _ in passes(model, batches, task_outputs, [
            (readers(space.sites[name])[0].layer, moments.hook)
            for name, moments in read.items()], False, backward=0):
        pass
    kept = {}
    for name, site in space.sites.items():
        generator = torch.Generator().manual_seed(zlib.crc32(f'{seed}{name}'.encode()))
        order = choose(site, read[name].inputs if read else None, generator)
        kept[name] = order[:len(like.sites[name].kept)].sort().values
    return space.structure_for(kept)


class Variant(NamedTuple):
    """One way to choose and refit.

    Args:
        label (str): In tables.
        options (dict): Of :func:`~mmkcr.closed_form.compression.compress`.
        importance (str, optional): Torch-Pruning chooses, by this one of its criteria
            (:func:`~lab.torch_pruning.torch_pruning_structure`). Defaults to None.
        choose (Callable, optional): Units in the place of the closed form's, as many in every
            layer as uniform shares leave. Defaults to None.
    """

    label: str
    options: dict[str, Any]
    importance: str | None = None
    choose: Choose | None = None


VARIANTS: Mapping[str, Variant] = dict(
    refit=Variant('refitted, shared out', {}),
    uniform=Variant('refitted, uniform', dict(uniform=True)),
    selected=Variant('shared out, not refitted', dict(refit='none')),
    variance=Variant('variance, mean shift', dict(rho=1e6), choose=by_variance),
    weight=Variant('largest weights', dict(refit='none'), choose=by_weight),
    random=Variant('random units', dict(refit='none'), choose=at_random),
    weight_refit=Variant('largest weights, refitted', {}, choose=by_weight),
    random_refit=Variant('random units, refitted', {}, choose=at_random),
    torch_pruning=Variant('Torch-Pruning, weights', dict(refit='none'), 'magnitude'),
    torch_pruning_taylor=Variant('Torch-Pruning, first order', dict(refit='none'), 'taylor'),
    torch_pruning_refit=Variant('Torch-Pruning, weights; refitted', {}, 'magnitude'))
#: Those that any network can have.
ANYWHERE = tuple(name for name, variant in VARIANTS.items() if variant.importance is None)


class Subject:
    """A trained dense network with its data.

    Args:
        config (Config): Of an ordinary task model.
        checkpoint (str): Its weights.
        images (int): Calibration images.
        seed (int): Of the calibration images. Defaults to 0.
        sites (Sequence[str], optional): Kinds of site. Defaults to those of ``compress``.
        part (str, optional): Whose MACs the budgets are about.
        held_out (int): Further images, that agreement is measured on. Defaults to 0: the first
            16 of calibration.
    """

    def __init__(self, config: Config, checkpoint: str, images: int,
                 seed: int = 0, sites: Sequence[str] | None = None,
                 part: str | None = None, held_out: int = 0) -> None:
        self.config, self.seed, self.sites, self.part = config, seed, sites, part
        self.model = build_model(config)
        load_weights(self.model, checkpoint)
        loaded = calibration_images(config, self.model, None, images + held_out, seed)
        count = loaded.images - held_out
        if count < 1:
            raise ValueError(f'expected more images in the training set than the {held_out} that '
                             f'are held out, found {loaded.images}')
        self.batches, self.held_out = (
            list(part.of_size(16)) for part in (loaded[:count], loaded[count:] or loaded[:16]))
        self.logits = config.get('default_scope', 'mmpretrain') == 'mmpretrain'
        self.shape = default_shape(config, self.model)
        self._runner: Runner | None = None
        self._profiles: dict[str, Any] | None = None

    def metrics(self, model: nn.Module) -> dict[str, float]:
        """Metrics of a model on the test set."""
        if self._runner is None:
            config = copy.deepcopy(self.config)
            config.load_from, config.resume = None, False
            config.work_dir = config.get('work_dir') or 'work_dirs/compress_study'
            self._runner = Runner.from_cfg(config)
        self._runner.model = model
        return self._runner.test()

    def run(self, variant: str, target: float) -> dict[str, float]:
        """Compress by a variant to a target; metrics, agreement and the share of MACs reached."""
        _, options, importance, choose = VARIANTS[variant]
        common = dict(input_shape=self.shape, part=self.part, logits=self.logits, progress=False,
                      seed=self.seed)
        run = dict(forward=task_outputs, held_out=self.held_out)
        if importance:
            structure = torch_pruning_structure(self.model, self.sites or PRUNED, target,
                                                self.batches, importance)
        else:
            compress_options = dict(uniform=True, refit='none') if choose else options
            result = compress(self.model, self.batches, target, self.sites,
                              profiles=self._profiles, **run, **common, **compress_options)
            self._profiles = result.profiles
            structure = choose and same_sizes(self.model, result.structure, choose, self.batches,
                                              f'{self.seed}:')
        if structure:
            result = refit_structure(self.model, structure, self.batches,
                                     CompressOptions(**common, **options), **run)
        macs = result.structure.macs
        return dict(self.metrics(result.model), macs=macs['subnet'] / macs['dense'],
                    error=result.agreement['error'])


def study(subjects: Sequence[Subject], variants: Sequence[str], targets: Sequence[float],
          metric: str, say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Rows of a table: variant, target, mean and spread over subjects (seeds).

    Args:
        subjects (Sequence[Subject]): One a seed.
        variants (Sequence[str]): Keys of :data:`VARIANTS`.
        targets (Sequence[float]): Shares of the dense MACs.
        metric (str): Key of the metric, such as ``'accuracy/top1'``.
        say (Callable): Told every row. Defaults to ``print``.

    Raises:
        ValueError: The dense networks do not have the metric.
    """
    dense = [subject.metrics(subject.model) for subject in subjects]
    if not all(metric in found for found in dense):
        raise ValueError(f'expected a metric of {sorted(dense[0])}, found {metric!r}')
    rows = [summary('dense', 1., [found[metric] for found in dense])]
    say(str(rows[0]))
    for target in targets:
        for variant in variants:
            found = [subject.run(variant, target) for subject in subjects]
            # a detector that finds nothing has no AP, but an error in the log
            rows.append(summary(variant, target, [one.get(metric, 0.) for one in found],
                                statistics.mean(one['macs'] for one in found)))
            rows[-1]['errors'] = [one['error'] for one in found]
            say(str(rows[-1]))
    return rows


def summary(variant: str, target: float, values: Sequence[float],
            macs: float = 1.) -> dict[str, Any]:
    """One row: the values of all seeds, their mean and standard deviation."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.
    values = [float(value) for value in values]
    return dict(variant=variant, target=target, macs=macs, values=values,
                mean=statistics.mean(values), spread=spread)
