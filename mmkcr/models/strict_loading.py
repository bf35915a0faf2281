"""A state_dict fits a backbone whole or is refused."""

import logging
import re
from collections.abc import Collection, Mapping

from torch import Tensor, nn

from mmkcr.core import KEPT
from mmkcr.core.products import added_layers
from .sites.base import HostSite

#: Buffers that hosts compute anew and take out of what they load.
RECOMPUTED = re.compile(r'(.*\.)?(relative_position_index|relative_coords_table|attn_mask)$')
#: As `optional_keys` of a host that says nothing.
NO_KEY = r'$^'


def inherit_dense(sites: Mapping[str, HostSite], state_dict: dict[str, Tensor], prefix: str,
                  name: str, kept: Tensor) -> None:
    """Let heads that a config chose by blocks or scores start from a dense network's weights.

    Args:
        sites (Mapping[str, HostSite]): Of the backbone.
        state_dict (dict[str, Tensor]): Entries of dense layers are cut in place.
        prefix (str): Beginning of the backbone's keys in it.
        name (str): Of the backbone, for the log.
        kept (Tensor): Digest of the units that the sites keep, which the entries get.
    """
    inherited = [site.inherit_dense(state_dict, prefix) for site in sites.values()]  # of all
    if any(inherited):
        state_dict.setdefault(f'{prefix}{KEPT}', kept)
        from mmengine.logging import print_log
        print_log(f'The replaced heads of the `{name}` start from the values and projections of '
                  'the dense network that is loaded', 'current')


def take_kept(host: nn.Module, state_dict: dict[str, Tensor], prefix: str, name: str,
              digests: Collection[int]) -> None:
    """Refuse weights of a subnet that keeps other units, whose shapes may be the same.

    Weights without a record of their units, of an ordinary network, are named and get ours.

    Args:
        host (nn.Module): The backbone.
        state_dict (dict[str, Tensor]): Gets the backbone's own record.
        prefix (str): Beginning of the backbone's keys in it.
        name (str): Of the backbone, for the log.
        digests (Collection[int]): Records that weights of this network may have.

    Raises:
        ValueError: The weights have another record.
    """
    ours = getattr(host, KEPT, None)
    if ours is None or not any(key.startswith(prefix) for key in state_dict):
        return
    theirs = state_dict.get(f'{prefix}{KEPT}')
    if theirs is None:
        logging.getLogger('mmkcr').warning(
            'Not checked: weights of the `%s` are loaded that do not say which units they are of, '
            'so they may be of other units than the structure keeps.', name)
    elif theirs.tolist() not in digests:
        raise ValueError('expected a checkpoint of the subnet in the structure, found other kept '
                         'units')
    state_dict[f'{prefix}{KEPT}'] = ours


def check_state(host: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, name: str,
                state: str, gated: Collection[str] = ()) -> None:
    """Refuse a state_dict that would load only in part.

    A supernet may be loaded from a dense checkpoint: it keeps its gates and the layers that it
    has in excess. Optional entries that are missing or surplus are logged.

    Args:
        host (nn.Module): The backbone, which the entries are for.
        state_dict (Mapping[str, Tensor]): The entries.
        prefix (str): Beginning of the backbone's keys among them.
        name (str): Of the backbone, for messages.
        state (str): ``'dense'``, ``'supernet'`` or ``'subnet'``.
        gated (Collection[str]): Names of sites with gates. Defaults to none.

    Raises:
        ValueError: Keys are missing, unexpected or mis-shaped.
    """
    given_shapes = {key[len(prefix):]: value.shape for key, value in state_dict.items()
                    if key.startswith(prefix) and hasattr(value, 'shape')}
    if not given_shapes:
        return
    # of `nn.Module`: a host's own `state_dict` may rename or drop entries
    expected = {key: value.shape for key, value in nn.Module.state_dict(host).items()
                if hasattr(value, 'shape')}
    gates = tuple(f'{site}.gate.' for site in gated)
    # the supernet has these layers in excess of the dense network
    gates += tuple(f'{name}.' for name in added_layers(host)) if gates else ()
    missing = [key for key in expected if key not in given_shapes and not RECOMPUTED.match(key)
               and not key.startswith(gates)]
    surplus = [key for key in given_shapes if key not in expected]
    # allowed, but said: they are new, or the network does not use them
    optional = re.compile(getattr(host, 'optional_keys', NO_KEY))
    new, unused = (list(filter(optional.match, keys)) for keys in (missing, surplus))
    shapes = {key: (tuple(given_shapes[key]), tuple(shape)) for key, shape in expected.items()
              if key in given_shapes and given_shapes[key] != shape}
    wrong = {'missing': [key for key in missing if key not in new],
             'unexpected': [key for key in surplus if key not in unused],
             'mis-shaped': [f'{key} {there} for {here}' for key, (there, here) in shapes.items()]}
    larger = all(there >= here for both in shapes.values() for there, here in zip(*both))
    expected_text = f'a checkpoint of the {state} `{name}`, found '
    if state == 'subnet' and larger and not wrong['missing'] + wrong['unexpected']:
        expected_text = (f'a checkpoint of the {state} `{name}`, which is beside its structure, '
                         'found another, as of the dense network: ')
    refuse(expected_text, wrong, f' below `{prefix or "."}`')
    if new or unused:
        from mmengine.logging import print_log
        print_log(f'Expected a checkpoint with all entries of the `{name}` and no '
                  f'others, found {_listing("missing", new)}, which keep their initial values, and '
                  f'{_listing("surplus", unused)}, which are not used', 'current', logging.WARNING)


def refuse(expected: str, wrong: Mapping[str, list[str]], where: str = '') -> None:
    """Raise a ``ValueError`` if there are wrong keys.

    Args:
        expected (str): Beginning of the message.
        wrong (Mapping[str, list[str]]): Keys by their fault, such as ``'missing'``.
        where (str): End of the message. Defaults to ''.
    """
    if any(wrong.values()):
        *listed, last = (_listing(kind, keys) for kind, keys in wrong.items())
        error = ValueError(f'expected {expected}{", ".join(listed)} and {last} keys{where}')
        # all of them, with --debug; `add_note` is of Python 3.11
        error.__notes__ = ['\n'.join([f'{kind}:', *keys]) for kind, keys in wrong.items()]
        raise error


def _listing(kind: str, keys: list[str]) -> str:
    shown = ', '.join(keys[:3]) + (', ...' if len(keys) > 3 else '')
    return f'{len(keys)} {kind}' + (f' ({shown})' if keys else '')
