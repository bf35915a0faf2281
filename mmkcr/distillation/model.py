"""The networks of a distillation, and how far apart their outputs are."""

import copy
import re
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.closed_form.options import Forward
from mmkcr.closed_form.replay import map_tensors
from mmkcr.core.checks import all_finite
from mmkcr.core.forward import flat_tensors
from .augmentation import move_batch
from .options import DistilOptions

#: Maximum number of held-out batches whose outputs give the scale of each output.
SCALED = 4
#: Least variance of an output, so that constant outputs do not divide by zero.
SMALLEST_VARIANCE = 1e-12


class DistilModel:
    """A student, the average of its weights, and its teacher.

    All are copies, on a GPU if there is one, in the mode ``eval``: nothing is dropped, and batch
    norms keep their statistics. Parameters that are frozen in the student stay as they are.

    Args:
        student (nn.Module): The compressed network.
        teacher (nn.Module): The dense network.
        forward (Callable): Takes a network and a batch; returns the outputs that are to agree.
        settings (DistilOptions): Options.
        logits (bool): Whether the last output is class scores (B, C).
        held_out (Sequence): Batches of held-out images.

    Raises:
        ValueError: The teacher's outputs on held-out images are not finite.
    """

    def __init__(self, student: nn.Module, teacher: nn.Module, forward: Forward,
                 settings: DistilOptions, logits: bool, held_out: Sequence[Any]) -> None:
        self.device = torch.device('cuda', torch.cuda.current_device()) \
            if torch.cuda.is_available() else next(student.parameters()).device
        self.student = copy.deepcopy(student).to(self.device)
        self.average = copy.deepcopy(student).to(self.device).requires_grad_(False)
        self.teacher = copy.deepcopy(teacher).to(self.device).requires_grad_(False)
        for network in (self.student, self.average, self.teacher):
            network.eval()  # `eval` of mmpretrain's backbones returns None
        self._forward, self._settings = forward, settings
        self._logits, self._held_out = logits, held_out
        self._between = self._comparable(
            common_blocks(self.student, self.teacher, settings.between))
        self._variances = self._output_variances()

    def parameters_to_train(self, network: nn.Module) -> list[Tensor]:
        """The parameters of a network that are not frozen in the student.

        Args:
            network (nn.Module): The student, or a copy of it.
        """
        flags = [value.requires_grad for value in self.student.parameters()]
        return [value for value, flag in zip(network.parameters(), flags, strict=True) if flag]

    def loss(self, batch: Any) -> Tensor:
        """Loss of the student on a batch of the form that ``forward`` takes; a scalar."""
        outputs, wanted = self._paired_outputs(self.student, batch)
        losses = []
        if self._logits:
            tau = self._settings.temperature
            scores, right = (one.pop().float().div(tau).log_softmax(-1)
                             for one in (outputs, wanted))
            losses.append(tau**2 * F.kl_div(scores, right, reduction='batchmean', log_target=True))
        if terms := self._distances(outputs, wanted):
            losses.append(torch.stack(terms).mean())
        return sum(losses)

    @torch.no_grad()
    def measure_distance(self) -> float:
        """Mean distance of the average's outputs to the teacher's, on held-out images.

        It counts the outputs that the task reads, not the blocks between.
        """
        distances = []
        for batch in self._held_out:
            terms = self._distances(*self._paired_outputs(
                self.average, move_batch(batch, self.device)))
            terms = terms[min(len(self._between), len(terms) - 1):]
            distances.append(float(torch.stack(terms).mean()))
        return sum(distances) / len(distances)

    @torch.no_grad()
    def _comparable(self, blocks: Sequence[str]) -> list[str]:
        """The blocks whose outputs have equal shapes in both networks."""
        batch = move_batch(self._held_out[0], self.device)
        shapes = []
        for network in (self.student, self.teacher):
            caught, _ = self._run(network, batch, blocks)
            shapes.append({path: [tuple(one.shape) for one in out] for path, out in caught.items()})
        return [path for path in blocks if shapes[0].get(path) == shapes[1].get(path) is not None]

    @torch.no_grad()
    def _output_variances(self) -> list[Tensor]:
        """The variance of each output of the teacher, on a few batches."""
        outputs = []
        for batch in self._held_out[:SCALED]:
            outputs.append(self._outputs(self.teacher, move_batch(batch, self.device)))
            if not all(map(all_finite, outputs[-1])):
                raise ValueError('expected finite outputs of the teacher on held-out images, found '
                                 f'`nan` or `inf` in batch {len(outputs)}')
        return [sum(out.float().var(correction=0) for out in outs).clamp(min=SMALLEST_VARIANCE)
                / len(outs) for outs in zip(*outputs)]

    def _distances(self, outputs: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor]:
        """Mean squared differences of outputs, each over the variance of the teacher's output."""
        return [(one.float() - other.float()).square().mean() / variance
                for one, other, variance in zip(outputs, wanted, self._variances)]

    def _paired_outputs(self, network: nn.Module, batch: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs of a network and of the teacher, of equal shapes."""
        with torch.no_grad():
            wanted = self._outputs(self.teacher, batch)
        outputs = self._outputs(network, batch)
        shapes = [[tuple(one.shape) for one in of_one] for of_one in (wanted, outputs)]
        if shapes[0] != shapes[1]:
            raise ValueError('expected a student with outputs of the shapes of its teacher '
                             f'{shapes[0]}, found {shapes[1]}')
        return outputs, wanted

    def _outputs(self, network: nn.Module, batch: Any) -> list[Tensor]:
        """Outputs of the blocks between, where gradients stop, and then the final outputs."""
        caught, outputs = self._run(network, batch, self._between)
        return [tensor for path in self._between for tensor in caught.get(path, [])] + outputs

    def _run(self, network: nn.Module, batch: Any,
             blocks: Sequence[str]) -> tuple[dict[str, list[Tensor]], list[Tensor]]:
        """The first tensor that each of some blocks gives, and the outputs that are to agree."""
        caught: dict[str, list[Tensor]] = {}

        def catch(path: str, out: Any) -> Any:
            """Take a block's output, and stop gradients behind it."""
            caught[path] = flat_tensors(out)[:1]
            return map_tensors(out, Tensor.detach)

        with ExitStack() as stack:
            for path in blocks:
                stack.enter_context(network.get_submodule(path).register_forward_hook(
                    lambda _, __, out, path=path: catch(path, out)))
            outputs = flat_tensors(self._forward(network, batch))
        return caught, outputs


def common_blocks(student: nn.Module, teacher: nn.Module, count: int) -> list[str]:
    """Paths of at most ``count`` evenly spaced blocks of both networks, without the last one.

    A block is the first numbered module on the path of a weight that was cut.

    Args:
        student (nn.Module): The compressed network.
        teacher (nn.Module): The dense network.
        count (int): Maximum number of blocks.
    """
    shapes = {name: value.shape for name, value in teacher.named_parameters()}
    cut = [name for name, value in student.named_parameters() if shapes.get(name) != value.shape]
    numbered = [re.match(r'(?:[^.]+\.)*?\d+(?=\.)', name) for name in cut]
    blocks = list(dict.fromkeys(match[0] for match in numbered if match))[:-1]
    modules = dict(teacher.named_modules())
    both = [path for path in blocks if path in modules]
    count = min(count, len(both))
    return [both[(2 * i + 1) * len(both) // (2 * count)] for i in range(count)]
