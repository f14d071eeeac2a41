"""What a strategy's module gives a rank: a `build` function that makes a `Workload`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from workloads.cost_models.schedules import Action, MessageEnd
from workloads.spec import Setup

# What a probe's module gives a rank: a `probe` function that measures the machine, and what it is handed for that.

Quantity = Literal["collective_s", "copy_s", "matmul_s", "rounds", "sent_bytes", "peak_node_bytes"]
"""What a rank can find of one call.

collective_s, copy_s, matmul_s: its time, as the stopwatch gives it; these are handed over as `Elapsed`.
rounds: rounds of messages, those included in which the rank has none. sent_bytes: all that it sent.
peak_node_bytes: the most that it sent, or received, in one round.
"""


class ProbeSetup(Setup, Protocol):
    """What a probe reads of a case."""

    @property
    def steps(self) -> int:
        """Measured calls of each measurement."""

    @property
    def warm_up(self) -> int:
        """Calls before them."""


class Elapsed(Protocol):
    """What one call took, in seconds, and what of it is known."""

    @property
    def elapsed_s(self) -> float:
        """Of the device alone, where that can be told; on a CPU the call does the work itself."""

    @property
    def with_host_s(self) -> float | None:
        """What a loop in Python waits for it, the launch by the host included; None on a CPU, where both are one."""

    @property
    def why_with_host(self) -> str | None:
        """Why the host is in `elapsed_s`, too, on a device; None where it is not."""

    @property
    def begun_ns(self) -> int | None:
        """Unix time since when the device did nothing but this call; None on a CPU."""


class Record(Protocol):
    """Takes one measurement: figures that share their labels. Labels are those of the quantity's metric."""

    def __call__(self, figures: Mapping[Quantity, float | Elapsed], **labels: str) -> None: ...


class Stopwatch(Protocol):
    """Times calls on the rank's device. All ranks must ask for the same, in the same order: they start together."""

    def back_to_back(self, call: Callable[[], object], *, warm_up: int, calls: int) -> Elapsed:
        """One call, where each is queued behind the one before: the time of all, divided by their number."""

    def each(self, call: Callable[[], object], *, warm_up: int, calls: int, warm_up_s: float = 0.0) -> Elapsed:
        """One call: the median of all, each begun when the one before was through. Ranks must not meet in a call.

        warm_up_s: for so long the call is made again and again after the calls of the warm-up, until the device has the
        clock that it keeps.
        """


Probe = Callable[[ProbeSetup, DeviceMesh, Record, Stopwatch], None]
"""A probe's module has a function `probe` of this type.

Raises:
    RuntimeError: what was computed is wrong, or what was asked for does not fit into memory.
"""


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
