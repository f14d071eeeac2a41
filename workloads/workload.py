"""What a strategy's module gives a rank: a `build` function that makes a `Workload`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from workloads.cards.card import Setup
from workloads.laws.schedules import Action, MessageEnd

Phase = Callable[[str], AbstractContextManager[None]]
"""Marks a part of the step: `with phase("forward"):`. Who hands it in decides what it measures."""

MarkAction = Callable[[Action], AbstractContextManager[None]]
"""Marks what a pipeline stage computes for a microbatch."""

TellMessage = Callable[[MessageEnd, Action], None]
"""Hears that a stage hands over what an action made, or asks for what it needs; of both halves of a backward that parts
it, the action is called `backward`."""


class Workload(Protocol):
    """A strategy that stands ready to train."""

    model: nn.Module
    optimizer: Optimizer

    def step(self, tokens_bs: Tensor) -> Tensor | None:
        """One optimizer step over this rank's share of the batch.

        tokens_bs: (parts x local batch, sequence + 1) int64 on the rank's device; the last column is only a
        target.
        Returns: the mean loss of this rank's tokens in nats, a scalar left on the device; None where this rank
        computes no loss.
        """

    def full_gradients(self) -> dict[str, Tensor]:
        """The gradient of the last step, whole, by the name that the weight has in `single`; for the parity test.

        Raises:
            RuntimeError: a weight has no gradient.
        """


@runtime_checkable
class CountsPayload(Protocol):
    """A workload that sends tensors where no collective does: messages between ranks, or by other means than process
    groups; the Flight Recorder tells of neither."""

    def payload_bytes(self) -> Mapping[str, int]:
        """Bytes of the tensors that this rank so sent or received in its last step, by collective."""


@runtime_checkable
class CountsPairs(Protocol):
    """A workload whose ranks may have unequal shares of attention."""

    def attention_pairs(self) -> int:
        """Pairs of query and key that this rank attended in its last step's forward, of all heads and layers."""


@runtime_checkable
class RunsStages(Protocol):
    """A workload whose steps are made of actions of pipeline stages."""

    def mark_actions(self, mark: MarkAction | None, tell_message: TellMessage | None = None) -> None:
        """From now on enter `mark(action)` around each action's own computing, waits for other ranks left out.

        tell_message: is told of each message. None: nothing is marked, or nobody told, any more.
        """


@runtime_checkable
class ReceivesMessages(Protocol):
    """A workload that keeps tensors for messages to come in, from step to step."""

    def receive_buffers(self) -> Sequence[Tensor]:
        """All of this rank's, as far as they are made by now."""


@runtime_checkable
class KnowsNotes(Protocol):
    """A workload that knows what its card cannot, because only the run finds it out."""

    def notes(self) -> Sequence[str]:
        """What a reader of the run's figures must know; alike on all ranks."""


@runtime_checkable
class KnowsNorm(Protocol):
    """A workload that knows the norm by which it clipped."""

    def gradient_norm(self) -> float | None:
        """The norm of the last step's whole gradient before clipping; None where this rank took none."""


@runtime_checkable
class HoldsTensors(Protocol):
    """A workload whose states are not all behind its model's weights and its optimizer's state."""

    def held_tensors(self) -> Mapping[str, Sequence[Tensor]]:
        """After a step, those behind parameters, gradients and optimizer, in this order."""


Build = Callable[[Setup, DeviceMesh, Phase], Workload]
"""A strategy's module has a function `build` of this type: it seeds, makes model and optimizer, and wraps them."""
