"""Initial gates from scores of units on calibration images (`mmkcr compress`).

A unit's score is the loss that it avoids per MAC, given the units that come before it. The units
of all sites are ranked together, and a unit's logit is the normal quantile of its rank. Then one
number is added to all logits, so that the search starts at the same expected MACs as without
scores. Only the order of the units is new.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmkcr.core import BaseGate, MacsModel
from mmkcr.core.structure import read_json

Scores = dict[str, tuple[np.ndarray, np.ndarray]]


def load_scores(path: str | Path) -> Scores:
    """Order of the units and loss at each size, by site, from a ``sensitivity.json``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not valid; the message names the site.
    """
    data, scores = read_json(Path(path), 'a sensitivity'), {}
    if not isinstance(data, Mapping) or not data:
        raise ValueError(f'expected a sensitivity file with sites, found none in `{path}`')
    for name, entry in data.items():
        try:
            order, losses = np.asarray(entry['order']), np.asarray(entry['losses'], float)
            # a permutation of the units, and the losses with 0 to n units kept
            good = order.dtype.kind in 'iu' and np.isfinite(losses).all() and \
                np.array_equal(np.sort(order), np.arange(len(order))) and \
                losses.shape == (len(order) + 1, )
        except (KeyError, TypeError, ValueError, IndexError):
            good = False
        if not good:
            raise ValueError('expected an order of units and a loss for each size of site '
                             f'`{name}`, found others in `{path}`')
        scores[name] = order, losses
    return scores


def start_from_scores(gates: Mapping[str, BaseGate], scores: Scores,
                      macs: MacsModel) -> dict[str, Tensor]:
    """Initialise gates from the scores of their units, in place.

    Sites without scores keep their gates. So do the channels of heads and of residual streams,
    because their scores refer to other bases than the network's.

    Returns:
        dict[str, Tensor]: The logits by site, of standard deviation 1 over all units.

    Raises:
        ValueError: No site has scores, or a site's scores do not fit the units of its gate.
    """
    known = {name: scores[name] for name in gates
             if name in scores and not name.endswith(('.head_channels', '.embedding'))}
    if not known:
        raise ValueError(f'expected scores of some of the sites {sorted(gates)[:3]}, found those '
                         f'of {sorted(scores)[:3]}: `mmkcr compress CONFIG CHECKPOINT --sites` '
                         'with the kinds of the search writes them')
    for name, (order, _) in known.items():
        if len(order) != gates[name].total:
            raise ValueError(f'expected scores of {gates[name].total} units at site `{name}`, '
                             f'found {len(order)}')
    with torch.no_grad():
        wanted = _expected(gates, macs)  # before any gate changes
        logits = _quantiles(known, gates, macs)
        low, high = -20., 20.  # bisection for the shift: expected MACs rise with it
        for _ in range(40):
            middle = (low + high) / 2
            shifted = {name: values if gates[name].decided else values + middle
                       for name, values in logits.items()}
            for name, values in shifted.items():
                gates[name].start(values)
            low, high = (low, middle) if _expected(gates, macs) > wanted else (middle, high)
    return shifted


def _expected(gates: Mapping[str, BaseGate], macs: MacsModel) -> float:
    return float(macs({name: gate.expected_size() for name, gate in gates.items()}))


def _quantiles(known: Scores, gates: Mapping[str, BaseGate], macs: MacsModel) -> dict[str, Tensor]:
    """Normal quantiles of the units' ranks over all sites, by site, in the order of the units."""
    from sklearn.isotonic import isotonic_regression
    totals = {name: gate.total for name, gate in gates.items()}
    values, places = [], []
    for name, (order, losses) in known.items():
        # per unit; not `macs.dense`, which lacks the layers that are added to the network
        saved = float(macs(totals) - macs({**totals, name: 1})) / max(len(order) - 1, 1)
        # slopes of the hull of the losses descend, so their ranks keep the order of the units
        slopes = isotonic_regression(np.maximum(losses[:-1] - losses[1:], 0), increasing=False)
        values.append(slopes / max(saved, 1.))
        places.append(np.arange(len(order)) / len(order))
    lengths, values, places = list(map(len, values)), np.concatenate(values), np.concatenate(places)
    ranked = np.lexsort((places, -values))  # the largest gain first, then the earlier unit
    shares = np.empty(len(values))  # of units that rank below, in (0, 1)
    shares[ranked] = 1 - (np.arange(len(values)) + 0.5) / len(values)
    quantiles = torch.special.ndtri(torch.from_numpy(shares)).split(lengths)
    # the inverse of the order: where each unit stands in it
    return {name: of_site[torch.from_numpy(order.argsort())]
            for (name, (order, _)), of_site in zip(known.items(), quantiles)}
