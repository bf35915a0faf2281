"""Mutual information of features with inputs and labels (DCS section 3.3).

Features and inputs are assigned softly to clusters: ``phi(x, a) = softmax_a(-beta |x - c_a|^2)``.
All are sums over samples, in nats, of O(A B + A C) numbers in fp64: 16 MB at A = B = C = 1000.

Shapes: n samples, A clusters of features, B clusters of inputs, C classes, d feature width.
"""

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce
from torch import Tensor


def log_assignments(features: Tensor, centroids: Tensor, beta: float = 1.0,
                    normalize: bool = True) -> Tensor:
    r"""``log phi`` (B, A), stable for any distance (fact 3); fp64 of fp64 features, else fp32.

    ``|x|^2`` is the same for every cluster and cancels. Raw distances of images are in the
    thousands, so that ``exp(-|x - c|^2)`` is 0 in every cluster.

    Args:
        features (Tensor): (B, d), floating.
        centroids (Tensor): (A, d).
        beta (float): Inverse temperature. Defaults to 1.
        normalize (bool): Bring the features to unit length first. Defaults to True.
    """
    with torch.autocast(features.device.type, enabled=False):
        features = features if features.dtype == torch.float64 else features.float()
        if normalize:
            features = F.normalize(features, dim=1)
        centroids = centroids.to(features)
        logits = 2 * features @ centroids.T - centroids.square().sum(1)
        return (beta * logits).log_softmax(1)


def one_hot_scores(labels: Tensor, num_classes: int) -> Tensor:
    """Labels (B,) as one-hot scores (B, C) in fp64; scores (B, C) of mixed images stay.

    Raises:
        ValueError: Labels out of range, or another shape.
    """
    if labels.ndim == 2 and labels.shape[1] == num_classes:
        return labels.double()
    if labels.ndim != 1 or labels.numel() and not 0 <= labels.min() <= labels.max() < num_classes:
        what = f'{labels.min()} to {labels.max()}' if labels.ndim == 1 else \
            f'shape {tuple(labels.shape)}'
        raise ValueError(f'expected labels of {num_classes} classes, found `{what}`')
    return F.one_hot(labels.long(), num_classes).double()


class InformationAccumulator:
    """Joint probabilities of A clusters of features, B clusters of inputs and C classes.

    Args:
        clusters (int): A.
        num_classes (int): C.
        input_clusters (int): B; 0 leaves the inputs out. Defaults to 0.
        device (str): Of the sums. Defaults to ``'cpu'``.
    """

    def __init__(self, clusters: int, num_classes: int, input_clusters: int = 0,
                 device: str = 'cpu') -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        # all are sums over samples; X~ is the features, X the inputs, y the scores
        self.labels = zeros(clusters, num_classes)  # phi(X~, a) y_c, (A, C)
        self.inputs = zeros(clusters, input_clusters)  # phi(X~, a) phi(X, b), (A, B)
        self.log_inputs = zeros(input_clusters)  # log phi(X, b), (B,)
        self.negentropy, self.count = zeros(()), zeros(())  # sum_b phi(X, b) log phi(X, b); 1

    @torch.no_grad()
    def add(self, log_phi: Tensor, labels: Tensor,
            log_phi_inputs: Tensor | None = None) -> 'InformationAccumulator':
        """Add a batch; returns itself.

        Args:
            log_phi (Tensor): :func:`log_assignments` of the features, (samples, A).
            labels (Tensor): (samples,), or scores (samples, C).
            log_phi_inputs (Tensor, optional): :func:`log_assignments` of the inputs, (samples, B).
                Defaults to None, where inputs are left out.
        """
        phi = log_phi.to(self.labels).exp()  # fp64
        self.labels += phi.T @ one_hot_scores(labels, self.labels.shape[1]).to(phi)
        self.count += len(phi)
        if self.inputs.shape[1]:
            log_inputs = log_phi_inputs.to(phi)
            self.inputs += phi.T @ log_inputs.exp()
            self.log_inputs += log_inputs.sum(0)
            self.negentropy += (log_inputs.exp() * log_inputs).sum()
        return self

    def all_reduce(self) -> 'InformationAccumulator':
        """Sum over ranks, in place."""
        for total in (self.labels, self.inputs, self.log_inputs, self.negentropy, self.count):
            all_reduce(total)
        return self

    def log_q(self, smoothing: float = 1e-3) -> Tensor:
        r"""Log of the variational distribution Q(a | y), (C, A) (equation 8, fact 4).

        Args:
            smoothing (float): Pseudo-count s of every (a, y):
                ``Q(a | y) = (sum_i phi(X~_i, a) 1[y_i = y] + s) / (n_y + s A)``, uniform for a
                class without samples. With 0 the log of an empty (a, y) is -inf. Defaults to 1e-3.
        """
        counts = self.labels.T + smoothing  # (C, A)
        return (counts / counts.sum(1, keepdim=True)).log()

    def values(self, log_q: Tensor | None = None, smoothing: float = 1e-3) -> dict[str, float]:
        """Mutual information and its bounds.

        Args:
            log_q (Tensor, optional): (C, A). Defaults to :meth:`log_q`.
            smoothing (float): See :meth:`log_q`. Not used if ``log_q`` is given.

        Returns:
            dict[str, float]: ``i_labels`` = I(X~, Y), and ``n``. With inputs also ``i_inputs`` =
            I(X~, X); ``ib`` = I(X~, X) - I(X~, Y); ``ibb_printed``, theorem 3.1 as printed, no
            bound; and ``ibb`` with the lemma's term that the theorem drops (fact 2).

        Raises:
            ValueError: There are no samples, or features that are not finite.
        """
        if not self.count or not torch.isfinite(self.labels).all():
            what = 'nan` or `inf' if self.count else '0'
            raise ValueError('expected finite features of at least one sample, found '
                             f'`{what}` in the mutual information')
        log_q = self.log_q(smoothing) if log_q is None else log_q.to(self.labels)
        labels, inputs = self.labels / self.count, self.inputs / self.count  # joint distributions
        values = dict(i_labels=mutual_information(labels), n=float(self.count))
        if self.inputs.shape[1]:
            values['i_inputs'] = mutual_information(inputs)
            values['ib'] = values['i_inputs'] - values['i_labels']
            # -(1/n) sum_i sum_a phi(X~_i, a) log Q(a | y_i), with 0 log 0 = 0
            variational = -torch.where(labels > 0, labels * log_q.T, 0.).sum()
            values['ibb_printed'] = float(self.negentropy / self.count + variational)
            # -sum_b E[phi(X, b)] E[log phi(X, b)]; the sum over a of `inputs` is E[phi(X, b)]
            dropped = -(inputs.sum(0) * self.log_inputs / self.count).sum()
            values['ibb'] = values['ibb_printed'] + float(dropped)
        return {key: float(value) for key, value in values.items()}


def mutual_information(joint: Tensor) -> float:
    """Mutual information in nats of a joint distribution (A, B) that sums to 1; never below 0."""
    independent = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    terms = torch.where(joint > 0, joint * (joint / independent).log(), 0.)
    return float(terms.sum().clamp(min=0))
