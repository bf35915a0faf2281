"""The information bottleneck of features and labels as a loss."""

import torch
from torch import Tensor

from mmkcr.functional.information import log_assignments
from mmkcr.methods.search.refresh import RefreshedTerm
from mmkcr.registry import MODELS


@MODELS.register_module()
class InformationBottleneckLoss(RefreshedTerm):
    r"""Variational bound of the IB loss (DCS theorem 3.1; docs/dcs.md).

    .. math:: \text{IBB}_j = -\frac1{|B_j|} \sum_{i \in B_j} \sum_a \phi(\tilde X_i, a)
              \log Q^{(t-1)}(a | y_i), \qquad
              \phi(x, a) = \operatorname{softmax}_a(-\beta \|x - c_a\|^2)

    The printed loss has a first term of the inputs,
    :math:`\sum_a \sum_b \phi(\tilde X_i, a) \phi(X_i, b) \log \phi(X_i, b)`. As
    :math:`\sum_a \phi(\tilde X_i, a) = 1`, it does not depend on the network and is not computed;
    nor is the lemma's term that the theorem drops. :class:`mmkcr.InformationBottleneckMetric`
    reports both.

    Centroids and Q are computed before each epoch (:class:`mmkcr.InformationBottleneckHook`) and
    are constant in the gradient. Mixed images count with the scores of their classes. All
    arithmetic is in fp32 (fp64 for fp64 features) with autocast switched off.

    Args:
        num_features (int): Feature width d.
        num_classes (int): C.
        num_clusters (int, optional): A. Defaults to None: C, as in the paper.
        weight (float): eta, the loss weight. Defaults to 50.
        beta (float): Inverse temperature of phi. Defaults to 1.
        normalize (bool): Bring features and centroids to unit length. The paper uses raw features,
            whose phi is nearly one-hot. Defaults to True.
        smoothing (float): Pseudo-count of every (a, y) in Q. Defaults to 1e-3.
        input_features (int, optional): Width of the flattened inputs, if the hook should
            report the IB value. Their centroids are then buffers here. Defaults to None.

    Attributes:
        needs_labels (bool): ``forward`` takes the labels.
    """

    state, hook, marker = 'clusters', 'InformationBottleneckHook', 'refreshed'

    needs_labels = True

    def __init__(self, num_features: int, num_classes: int, num_clusters: int | None = None,
                 weight: float = 50., beta: float = 1., normalize: bool = True,
                 smoothing: float = 1e-3, input_features: int | None = None) -> None:
        super().__init__(num_features)
        for name, value in (('num_clusters', num_clusters or num_classes), ('beta', beta),
                            ('smoothing', smoothing)):
            if value <= 0:
                raise ValueError(f'expected {name} > 0, found `{value}` in '
                                 'InformationBottleneckLoss')
        self.num_classes, self.num_clusters = num_classes, num_clusters or num_classes
        self.weight, self.beta, self.normalize = weight, beta, normalize
        self.smoothing, self.input_features = smoothing, input_features
        self.register_buffer('centroids', torch.zeros(self.num_clusters, num_features))
        self.register_buffer('log_q', torch.zeros(num_classes, self.num_clusters))
        # epoch of the last refresh, and whether there was one
        self.register_buffer('refresh_step', torch.full((), -1, dtype=torch.long))
        self.register_buffer('refreshed', torch.zeros((), dtype=torch.long))
        if input_features is not None:  # B = C clusters of the inputs
            self.register_buffer('input_centroids', torch.zeros(num_classes, input_features))
            self.register_buffer('input_refreshed', torch.zeros((), dtype=torch.long))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """The weighted loss of a batch, a scalar.

        Args:
            features (Tensor): (B, d), with gradient.
            labels (Tensor): Classes (B,), or scores (B, C).

        Raises:
            RuntimeError: There are no clusters yet.
            ValueError: The features have another width.
        """
        self.check(features)
        log_phi = self.log_phi(features)
        with torch.autocast(features.device.type, enabled=False):
            log_q = self.log_q.to(log_phi)
            # (B, A): log Q(. | y_i), or its mean under the scores of a mixed image
            rows = log_q[labels] if labels.ndim == 1 else labels.to(log_phi) @ log_q
            value = -(log_phi.exp() * rows).sum(1).mean()
        self._logged = dict(variational=value.detach())  # without eta
        return self.weight * value

    def log_phi(self, features: Tensor) -> Tensor:
        """Log of the soft assignments (B, A) of features (B, d) to the clusters."""
        return log_assignments(features, self.centroids, self.beta, self.normalize)

    @torch.no_grad()
    def refresh(self, centroids: Tensor, log_q: Tensor, step: int = -1) -> None:
        """Stores centroids (A, d), log Q (C, A), and the step before which they were computed."""
        if centroids.shape != self.centroids.shape:
            raise ValueError(f'expected centroids of shape {tuple(self.centroids.shape)}, found '
                             f'`{tuple(centroids.shape)}` in InformationBottleneckLoss')
        self.centroids.copy_(centroids)
        self.log_q.copy_(log_q)
        self.refresh_step.fill_(step)
        self.refreshed.fill_(1)
        self.ready = True
