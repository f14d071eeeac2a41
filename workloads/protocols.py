"""Protocols between a rank and what it runs: `Workload` and `Build` for training, `Probe` for measuring the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from workloads.cost_models.schedules import Action, MessageEnd
from workloads.spec import Setup

# Probes: the function that measures the machine, and its arguments.

Quantity = Literal["collective_s", "copy_s", "matmul_s", "pair_s", "rounds", "sent_bytes", "peak_node_bytes"]
"""A quantity that a rank can measure in one call.

collective_s, copy_s, matmul_s, pair_s: the call's time by the stopwatch, recorded as `Elapsed`.
rounds: rounds of messages, including those in which the rank has none. sent_bytes: all bytes that the rank sent.
peak_node_bytes: the most that the rank sent, or received, in one round.
"""


class ProbeSetup(Setup, Protocol):
    """What a probe reads of a case."""

    @property
    def steps(self) -> int:
        """Measured calls of each measurement."""

    @property
    def warm_up(self) -> int:
        """Calls before the measured ones."""


class Elapsed(Protocol):
    """Duration of one call, in seconds, and what it includes."""

    @property
    def elapsed_s(self) -> float:
        """Time of the device alone, if it can be measured; on a CPU the call does the work itself."""

    @property
    def with_host_s(self) -> float | None:
        """Time of the call in a Python loop, with the host's launch; None on a CPU, where both times are the same."""

    @property
    def why_with_host(self) -> str | None:
        """Why `elapsed_s` of a device includes the host; None if it does not."""

    @property
    def begun_ns(self) -> int | None:
        """Unix time from which the device ran nothing but this call; None on a CPU."""


class Record(Protocol):
    """Records one measurement: figures that share their labels, the labels of the quantity's metric."""

    def __call__(self, figures: Mapping[Quantity, float | Elapsed], **labels: str) -> None: ...


class Stopwatch(Protocol):
    """Times calls on the rank's device. All ranks must make the same calls in the same order: they start together."""

    def back_to_back(self, call: Callable[[], object], *, warm_up: int, calls: int) -> Elapsed:
        """Time calls that are queued one behind the other; the result is their total time divided by their number."""

    def each(self, call: Callable[[], object], *, warm_up: int, calls: int, warm_up_s: float = 0.0) -> Elapsed:
        """Time calls one by one, each begun when the one before is finished; the result is their median.

        The call must not wait for other ranks.
        warm_up_s: how long the call is repeated after the warm-up calls, until the device runs at the clock it keeps.
        """


Probe = Callable[[ProbeSetup, DeviceMesh, Record, Stopwatch], None]
"""Type of the function that a probe's entry in `workloads.registry` names.

Raises:
    RuntimeError: a computed result is wrong, or the requested sizes do not fit into memory.
"""


# Training: what a strategy builds, and what else it may report to a rank.

Phase = Callable[[str], AbstractContextManager[None]]
"""Marks a part of the step: `with phase("forward"):`. Whoever passes it in decides what it measures."""

MarkAction = Callable[[Action], AbstractContextManager[None]]
"""Marks what a pipeline stage computes for a microbatch."""

TellMessage = Callable[[MessageEnd, Action], None]
"""Called when a stage sends an action's output or requests an action's input. Where a schedule splits backward in two
halves, the action of both is called `backward`."""


class Workload(Protocol):
    """A strategy that is ready to train."""

    model: nn.Module
    optimizer: Optimizer

    def step(self, tokens_bs: Tensor) -> Tensor | None:
        """Run one optimizer step over this rank's share of the batch.

        tokens_bs: (parts x local batch, sequence + 1) int64 on the rank's device; the last column is only a
        target.
        Returns: the mean loss of this rank's tokens in nats, a scalar left on the device; None if this rank computes no
        loss.
        """

    def full_gradients(self) -> dict[str, Tensor]:
        """Return the last step's whole gradients, by the weights' names in `single`; for the parity test.

        Raises:
            RuntimeError: a weight has no gradient.
        """


@runtime_checkable
class CountsPayload(Protocol):
    """A workload that sends tensors by messages between ranks, or by other means than process groups.

    The Flight Recorder records none of them.
    """

    def payload_bytes(self) -> Mapping[str, int]:
        """Return the bytes of such tensors that this rank sent or received in its last step, by collective."""


@runtime_checkable
class CountsPairs(Protocol):
    """A workload whose ranks may have unequal shares of attention."""

    def attention_pairs(self) -> int:
        """Return the query-key pairs that this rank attended in its last step's forward, of all heads and layers."""


@runtime_checkable
class RunsStages(Protocol):
    """A workload whose steps consist of actions of pipeline stages."""

    def mark_actions(self, mark: MarkAction | None, tell_message: TellMessage | None = None) -> None:
        """From now on, enter `mark(action)` around each action's own computation, without its waits for other ranks.

        tell_message: called for each message. None stops either of them.
        """


@runtime_checkable
class ReceivesMessages(Protocol):
    """A workload that keeps buffers for incoming messages from step to step."""

    def receive_buffers(self) -> Sequence[Tensor]:
        """Return all of this rank's buffers that exist so far."""


@runtime_checkable
class KnowsNotes(Protocol):
    """A workload with notes that its spec cannot give, because only the run can determine them."""

    def notes(self) -> Sequence[str]:
        """Return what a reader of the run's figures must know; the same on all ranks."""


@runtime_checkable
class KnowsNorm(Protocol):
    """A workload that knows the norm by which it clipped."""

    def gradient_norm(self) -> Tensor | None:
        """Return the norm of the last step's whole gradient before clipping; None if this rank computed none.

        A scalar on the device or the host, which the device may still be computing.
        """


@runtime_checkable
class HoldsTensors(Protocol):
    """A workload whose states cannot all be found from its model's weights and its optimizer's state."""

    def held_tensors(self) -> Mapping[str, Sequence[Tensor]]:
        """Return the tensors held after a step, for parameters, gradients and optimizer, in this order."""


@runtime_checkable
class KeepsMaster(Protocol):
    """A workload whose optimizer updates an fp32 master, from which the model's weights are rounded."""

    def own_masters(self) -> Mapping[nn.Parameter, Tensor]:
        """Return the masters that this rank updates, by the model's weights."""


@runtime_checkable
class KeepsProgress(Protocol):
    """A workload that resumes from numbers as well as tensors, for example the step of its learning rate."""

    def progress(self) -> Mapping[str, float]:
        """Return these numbers, by name."""

    def resume(self, progress: Mapping[str, float]) -> None:
        """Resume from the numbers that `progress` returned."""


@runtime_checkable
class KeepsOwnStates(Protocol):
    """A workload whose states are divided by rank, not by weight, so that only as many ranks can resume from them."""

    def own_states(self) -> Mapping[str, Tensor]:
        """Return all tensors that training resumes from, by name; tensors of the same name are equal on all ranks."""


Build = Callable[[Setup, DeviceMesh, Phase], Workload]
"""The function that a strategy's entry in `workloads.registry` names: seeds, makes model and optimizer, wraps them."""
