"""Training any task model with regularisers on its features."""

import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from mmengine.model import BaseModel
from torch import Tensor, nn

from mmkcr.models.feature_tap import FeatureTap, feature_width
from mmkcr.models.tasks import is_dense_task
from mmkcr.registry import MODELS

_PREFIX = 'architecture.'


@MODELS.register_module()
class RegularizedModel(BaseModel):
    """A task model (classifier, detector, segmentor) with regularisers.

    The losses of the task model are kept as they are. Each active regulariser adds ``loss_<name>``,
    computed on features of the same forward pass. In the log ``loss`` is the sum that is minimised,
    and ``loss_task`` the share of the task model. Checkpoints hold the task model under its own
    keys, without a prefix, so that an ordinary config of the task model can load them. The state of
    the regularisers is stored beside it under ``regularizers.<name>``.

    In self-supervised training with several views of an image, the features are those of all
    views in the online network, without those of a momentum copy.

    Args:
        architecture (dict | nn.Module): The task model.
        regularizers (dict[str, dict]): Regularisers by name, such as
            ``dict(kcr=dict(type='mmkcr.KernelComplexityLoss'))``. Their ``num_features`` is
            inferred if it is not given. A regulariser is called while its ``active`` is true, with
            features of shape (B, d) and then with what it asks for: the model's inputs
            (``needs_inputs``), positions in the training set (``needs_indices``), labels
            (``needs_labels``, see :func:`labels_of`). One with a context manager ``watch()``
            observes the forward pass. Defaults to none.
        feature_layer (str): Layer whose features are regularised, see
            :class:`~mmkcr.models.feature_tap.FeatureTap`. Defaults to ``'backbone'``: the pooled
            last output, which is what a linear classification head reads. A regulariser with an
            attribute ``feature_layer`` uses that layer instead.
        data_preprocessor (dict, optional): Given to the task model if it has none.
        init_cfg (dict, optional): See ``BaseModule``.
    """

    def __init__(self, architecture: dict | nn.Module,
                 regularizers: Mapping[str, dict] | None = None, feature_layer: str = 'backbone',
                 data_preprocessor: dict | None = None, init_cfg: dict | None = None) -> None:
        if not isinstance(architecture, nn.Module):
            architecture = dict(architecture)
            if data_preprocessor is not None:
                architecture.setdefault('data_preprocessor', data_preprocessor)
            architecture = MODELS.build(architecture)
        super().__init__(architecture.data_preprocessor, init_cfg)
        self.architecture = architecture
        self.feature_layer = feature_layer
        self._task_losses: list[str] = []  # names of the task model's losses, of the last forward
        self.regularizers = nn.ModuleDict(
            {name: self._build_term(name, config) for name, config in (regularizers or {}).items()})
        for term in self.regularizers.values():
            if hasattr(term, 'bind'):
                term.bind(architecture)
        self._register_state_dict_hook(self._strip_prefix)
        self._register_load_state_dict_pre_hook(self._add_prefix)

    def __getattr__(self, name: str) -> Any:
        """Heads are the heads of the task model: the hosts' hooks set their options through it."""
        if name.endswith('head'):
            return getattr(super().__getattr__('architecture'), name)
        return super().__getattr__(name)

    def _build_term(self, name: str, config: Mapping[str, Any]) -> nn.Module:
        """Build a regulariser; infer the width of its features if it is needed and not given."""
        config = dict(config)
        cls = MODELS.get(config['type'])
        if getattr(cls, 'needs_labels', False) and is_dense_task(self.architecture):
            raise ValueError(
                f'expected a task with one label an image for the regulariser `{name}` '
                f'(`{cls.__name__}`), found `{type(self.architecture).__name__}`, whose images '
                'have many: leave it out')
        # only terms on features have a width
        asked = inspect.signature(cls).parameters
        if 'num_features' in asked and config.get('num_features') is None:
            layer = config.get('feature_layer', self.feature_layer)
            config['num_features'] = feature_width(self.architecture, layer)
        return MODELS.build(config)

    def forward(self, inputs: Tensor | list[Tensor], data_samples: list | None = None,
                mode: str = 'tensor') -> Any:
        """Run the task model on images (B, C, H, W) or on views; in mode ``'loss'`` add the terms.
        """
        if mode != 'loss':
            return self.architecture(inputs, data_samples, mode=mode)
        active = {name: term for name, term in self.regularizers.items() if term.active}
        taps, needed = {}, {}
        # features come from the forward of the loss: nothing runs twice
        with ExitStack() as stack:
            for name, term in active.items():
                needed[name] = self._needed(name, term, inputs, data_samples)
                layer = getattr(term, 'feature_layer', self.feature_layer)
                taps[name] = stack.enter_context(
                    FeatureTap(self.architecture, layer, are_views(inputs)))
                if hasattr(term, 'watch'):
                    stack.enter_context(term.watch())
            losses = self.architecture(inputs, data_samples, mode='loss')
        self._task_losses = [name for name in losses if 'loss' in name]
        for name, term in active.items():
            losses[f'loss_{name}'] = term(taps[name].features, *needed[name])
            # `parse_losses` sums entries with `loss` in their names, and only logs the others
            logged = term.log_vars() if hasattr(term, 'log_vars') else {}
            losses.update({f'{name}_{key}': torch.as_tensor(value)
                           for key, value in logged.items()})
        return losses

    def parse_losses(self, losses: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the losses, as the host does, and log the sum and the share of the task model.

        MMEngine logs a loss of the name ``loss``, which most classification heads have, in the
        place of the sum.

        Args:
            losses (dict): Losses, and values to log, as :meth:`forward` gives them.

        Returns:
            tuple[Tensor, dict]: The sum, and values to log: ``loss`` (the sum), ``loss_task`` (the
            share of the task model) and then every term, with 0 where it is switched off: a log
            would go on with the last value of a term that is not there.
        """
        terms = {'loss_task' if name == 'loss' else name: value for name, value in losses.items()}
        total, logged = super().parse_losses(terms)
        ours = ['loss_task' if name == 'loss' else name for name in self._task_losses]
        share = sum((logged[name] for name in ours if name in logged), torch.zeros_like(total))
        terms = {name: value for name, value in logged.items() if name not in ('loss', 'loss_task')}
        off = {name: torch.zeros_like(total) for name in self._added_losses() if name not in terms}
        return total, {'loss': total, 'loss_task': share, **off, **terms}

    def _added_losses(self) -> list[str]:
        """Names of the losses that are added to the losses of the task model, at some time."""
        return [f'loss_{name}' for name in self.regularizers]

    @staticmethod
    def _needed(name: str, term: nn.Module, inputs: Tensor,
                data_samples: list | None) -> list[Tensor]:
        """Further arguments that a regulariser asks for; with views no image has them."""
        def indices() -> Tensor:
            return torch.tensor([sample.get('sample_idx') for sample in data_samples])

        offered = dict(inputs=lambda: inputs, labels=lambda: labels_of(data_samples),
                       indices=indices)
        needs = [need for need in ('inputs', 'indices', 'labels')
                 if getattr(term, f'needs_{need}', False)]
        if needs and are_views(inputs):
            raise ValueError('expected regularisers of the features alone (such as '
                             "`mmkcr.KernelComplexityLoss` with form 'projection') in a training "
                             f'with several views of an image, found `{name}` '
                             f'(`{type(term).__name__}`), which needs {needs[0]}')
        return [offered[need]() for need in needs]

    @staticmethod
    def _strip_prefix(module: 'RegularizedModel', state_dict: dict[str, Tensor], prefix: str,
                      *_: Any) -> None:
        start = prefix + _PREFIX
        # the metadata holds versions by prefix: the hosts' upgrades of old keys read them
        for mapping in (state_dict, getattr(state_dict, '_metadata', {})):
            for key in list(mapping):
                # re-inserted in turn: the order stays
                name = prefix + key[len(start):] if key.startswith(start) else key
                mapping[name] = mapping.pop(key)

    def _add_prefix(self, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
        # keys of the wrapper itself; all others are the task model's
        names = {*self._modules, *self._buffers, '_extra_state'} - {'data_preprocessor'}
        for key in [k for k in state_dict if k.startswith(prefix)]:
            if key[len(prefix):].split('.')[0] not in names:
                state_dict[f'{prefix}{_PREFIX}{key[len(prefix):]}'] = state_dict.pop(key)


def are_views(inputs: Any) -> bool:
    """Whether a model's inputs are batches of several views, as in self-supervised training."""
    return isinstance(inputs, (list, tuple)) and all(
        isinstance(view, Tensor) and view.ndim == 4 for view in inputs)


def labels_of(data_samples: list | None) -> Tensor:
    """The classes of a batch of images: labels (B,), or scores (B, C) of mixed images."""
    for key in ('gt_score', 'gt_label'):
        if data_samples and all(key in sample for sample in data_samples):
            values = torch.stack([getattr(sample, key) for sample in data_samples])
            return values if key == 'gt_score' else values.flatten()
    raise ValueError('expected data samples with a `gt_label` or a `gt_score`, found '
                     f'{sorted(data_samples[0].keys()) if data_samples else "none"}')
