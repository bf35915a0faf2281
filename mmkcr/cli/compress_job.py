"""Arguments of ``mmkcr compress``."""

import re
from argparse import ArgumentTypeError
from dataclasses import dataclass
from typing import ClassVar

from mmkcr.apis.file_options import FileOptions
from mmkcr.cli.fields import Timed, argument, find_target, target
from mmkcr.closed_form.options import AUTO, COMPARED, SCOPES, check_timed
from mmkcr.deploy.int8 import QUANTIZERS


def read_gigabytes(text: str) -> int:
    """Bytes of a number of GB, 0 to 1e6; other numbers are refused."""
    if not 0 <= float(text) <= 1e6:  # NaN is refused too
        raise ArgumentTypeError(f'expected a number of GB within [0, 1e6], found {text}')
    return int(float(text) * 2**30)


def read_ridge(text: str) -> str | float:
    """A relative ridge, or the word for one that each layer chooses."""
    try:
        return text if text == AUTO else float(text)
    except ValueError:
        raise ArgumentTypeError(f'expected a number or `{AUTO}`, found `{text}`') from None


@dataclass(frozen=True, kw_only=True)
class CompressJob(Timed, FileOptions):
    """Arguments of ``mmkcr compress``."""

    offers: ClassVar = dict(
        config=dict(positional=True), checkpoint=dict(positional=True, nargs='?'), pretrained={},
        sites=dict(nargs='+', type=str, metavar='KIND'), scope=dict(choices=SCOPES),
        compare=dict(choices=COMPARED),
        part=dict(choices=('model', 'backbone')), calibration=dict(metavar='FOLDER'), images={},
        augment={},
        profiles=dict(type=str, metavar='DIR'), divisor={}, uniform={},
        rho=dict(type=read_ridge, metavar='RHO'),
        memory=dict(type=read_gigabytes, metavar='GB'), seed={}, device={},
        out=dict(type=str, metavar='DIR'))
    target_macs: list[str] | None = target(
        'macs', '12.6G', '; of detectors and segmentors those of the backbone', group='target!')
    target_params: list[str] | None = target('params', '12M', group='target!')
    target_bytes: list[str] | None = target('bytes', '40MB', ' (of the state_dict)',
                                            group='target!')
    target_latency: list[str] | None = target('latency', '12ms', ', of a table that was measured',
                                              group='target!')
    structure: str | None = argument(
        'structure.json of a search: what it keeps, with the weights of the dense checkpoint, '
        'refitted; for --scope backbone', metavar='JSON', group='target!')
    distil: str | None = argument(
        'then teach it what the dense model does, on the calibration images without labels: '
        'steps, or a time such as 30min; never worse', metavar='LENGTH')
    finetune: int | None = argument(
        'then train for so many epochs, or iterations where the config counts these, with its own '
        'schedule shorten_training, a tenth of its learning rates, and the dense model as teacher',
        metavar='LENGTH')
    evaluate: bool = argument('also evaluate all models on the test set', False)
    int8: str | None = argument(
        'also write dense and slim ONNX files in fp32 and int8 for '
        f'{" or ".join(sorted(QUANTIZERS))}, and compare them', choices=sorted(QUANTIZERS),
        metavar='RUNTIME')


def check_targets(args: CompressJob) -> None:
    """Refuse options that do not belong to the target, and targets at or above the dense network.
    """
    cost, given = find_target(args)
    if args.target_latency is not None:
        check_timed(args.scope)
    # of a network so large that shares and absolute numbers do not mix
    dense, amounts = 2**62, {}
    for text in given or ():
        amount = cost.read_target(text, dense)
        if amount >= dense:
            raise ValueError(f'expected a target below the dense network, found `{text}` of it: '
                             'nothing would be cut')
        if amount in amounts:
            raise ValueError(f'expected targets that differ, found `{amounts[amount]}` and '
                             f'`{text}`, which are the same')
        amounts[amount] = text


def name_targets(args: CompressJob) -> list[tuple[str, str]]:
    """The targets of a cost, the smallest first, each with its folder's name; ``''`` of a single.
    """
    cost, given = find_target(args)
    # of a network so large that shares and absolute numbers do not mix
    targets = sorted(given, key=lambda most: cost.read_target(most, 2**62))
    if len(targets) == 1:
        return [('', targets[0])]
    return [(f'{cost.name}-{re.sub("[^0-9A-Za-z.]", "", most)}', most) for most in targets]
