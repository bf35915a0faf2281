"""Features of a data set under a model: eval mode, test transforms, no side effects."""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.dist import get_dist_info
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from mmkcr.core import eval_mode
from mmkcr.core.forward import stop_after
from mmkcr.datasets.part import inner_sets, mixes_images
from mmkcr.models.feature_tap import FeatureTap, find_layer
from mmkcr.models.tasks import find_task, is_self_supervised, keep_randomness, unwrap


def find_pipeline(dataset: Any) -> Any:
    """The transforms of a data set, also inside its wrappers.

    Raises:
        ValueError: It has none.
    """
    if hasattr(dataset, 'pipeline'):
        return dataset.pipeline
    for inner in inner_sets(dataset):
        return find_pipeline(inner)
    raise ValueError('expected a data set with a `pipeline`, found '
                     f'`{type(dataset).__name__}` without one')


def plain_pipeline(pipeline: Any, size: tuple[int, int]) -> Any:
    """Deterministic transforms: images as a set loads them, resized and cropped in the centre.

    The shorter edge becomes 8/7 of the crop's longer one (256 for 224), as in mmpretrain's linear
    evaluation; the crop has a height and width. Of a training set's ``Compose`` the leading
    ``Load...`` transforms are kept; without any there is a ``ValueError``.
    """
    loads = list(itertools.takewhile(
        lambda transform: type(transform).__name__.startswith('Load'), pipeline.transforms))
    if not loads:
        raise ValueError('expected transforms of the training set that begin with loading, found '
                         f'`{type(pipeline.transforms[0]).__name__}`: give `pipeline` of the '
                         'hook')
    return type(pipeline)([
        *loads, dict(type='mmpretrain.ResizeEdge', scale=round(max(size) * 8 / 7), edge='short'),
        dict(type='mmpretrain.CenterCrop', crop_size=size[::-1]),
        dict(type='mmpretrain.PackInputs')])


def with_pipeline(dataset: Any, pipeline: Any) -> Any:
    """A view of a data set with other transforms; the original and its samples are not changed.

    Wrappers stay around it, but for those with transforms of their own, which mix images
    (``MultiImageMixDataset``).
    """
    attributes = vars(dataset)  # not hasattr: a wrapper may forward attributes of what it wraps
    if mixes_images(dataset):
        return with_pipeline(dataset.dataset, pipeline)
    if '_dataset' in attributes:  # MMEngine's for `num_batch_per_epoch`, which cannot be copied
        return type(dataset)(with_pipeline(attributes['_dataset'], pipeline), len(dataset))
    view = copy.copy(dataset)
    if 'dataset' in attributes:
        view.dataset = with_pipeline(dataset.dataset, pipeline)
    elif 'datasets' in attributes:
        view.datasets = [with_pipeline(child, pipeline) for child in dataset.datasets]
    else:
        find_pipeline(dataset)
        view.pipeline = pipeline
    return view


def draw_samples(total: int, number: int, seed: int) -> Tensor | None:
    """Draw ``number`` of ``total`` samples without replacement, by a ``seed``.

    Returns:
        Tensor | None: Indices, (number,), int64, ascending; None for all samples.
    """
    if number >= total:
        return None
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(total, generator=generator)[:number].sort().values


def share_of_rank(dataset: Any, indices: Sequence[int] | None, like: DataLoader,
                  distributed: bool = True) -> DataLoader:
    """A sequential loader of some samples of a map-style data set, without padding.

    Args:
        dataset (Dataset): Of all samples.
        indices (Sequence[int], optional): Positions of the samples; None for all.
        like (DataLoader): Gives batch size, workers and collate function.
        distributed (bool): Whether a rank loads every world_size-th sample only. Defaults to True.
    """
    rank, world = get_dist_info() if distributed else (0, 1)
    indices = range(len(dataset)) if indices is None else indices
    return DataLoader(
        Subset(dataset, indices[rank::world]),
        batch_size=like.batch_size or getattr(like.batch_sampler, 'batch_size', 32),
        num_workers=like.num_workers,
        collate_fn=like.collate_fn)


def feature_layer_of(model: nn.Module) -> str:
    """The layer whose features a classifier's analysis uses, as FeatureTap takes it.

    It is the ``feature_layer`` of a model with regularisers if it differs from the default,
    otherwise the input of the head's last linear layer (of the head itself if it is one).

    Raises:
        ValueError: A head without a linear layer.
    """
    model = unwrap(model)
    given = getattr(model, 'feature_layer', 'backbone')
    if given != 'backbone':
        return given
    head = getattr(find_task(model), 'head', None)
    layers = [name for name, module in head.named_modules() if isinstance(module, nn.Linear)] \
        if isinstance(head, nn.Module) else []
    if not layers:
        raise ValueError('expected a classifier whose head has a linear layer, found '
                         f'`{type(find_task(model)).__name__}` with `{type(head).__name__}`: '
                         'name the layer')
    return '.'.join(filter(None, ('head', layers[-1]))) + ':input'


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards all modules' modes and all random states are restored."""
    with keep_randomness(), eval_mode(model):
        yield


@torch.no_grad()
def feature_batches(model: nn.Module, loader: DataLoader,
                    layer: str) -> Iterator[tuple[Tensor, Any]]:
    """Yield the pooled features (B, d) of every batch of a loader, and the batch itself.

    A batch of images of several sizes is run image by image: padded to one size, an image's
    features would depend on its neighbours. The heads behind a tapped backbone are not run.

    Args:
        model (nn.Module): Classifier, also in a wrapper.
        loader (DataLoader): Batches for the model's data preprocessor.
        layer (str): See :class:`~mmkcr.models.feature_tap.FeatureTap`.
    """
    model = unwrap(model)
    # a layer inside the backbone may run more than once
    last = find_layer(model, layer) if layer == 'backbone' else None
    with FeatureTap(model, layer) as tap:
        for batch in loader:
            features = []
            for part in _of_one_size(batch):
                data = preprocessed(model, part)
                with stop_after(last):
                    model(**data, mode='tensor') if isinstance(data, dict) else \
                        model(*data, mode='tensor')
                features.append(tap.features)
            yield torch.cat(features), batch


def preprocessed(model: nn.Module, batch: Any) -> Any:
    """A batch behind a model's data preprocessor.

    Stacked images ``inputs`` (B, C, H, W) of a self-supervised model are no views: each is taken as
    a first one.
    """
    views = is_self_supervised(find_task(model)) and isinstance(batch['inputs'], Tensor)
    if not views:
        return model.data_preprocessor(batch, False)
    # that of BEiT normalises each of two views in its own way, and takes no single one
    data = model.data_preprocessor(dict(batch, inputs=[batch['inputs']] * 2), False)
    return dict(data, inputs=data['inputs'][0])


def _of_one_size(batch: Any) -> Iterator[Any]:
    """A batch, or its images one by one if their sizes differ."""
    images = batch.get('inputs') if isinstance(batch, Mapping) else None
    if not isinstance(images, list) or len({tuple(image.shape) for image in images}) == 1:
        yield batch
        return
    for i in range(len(images)):
        yield {key: [value[i]] for key, value in batch.items()}
