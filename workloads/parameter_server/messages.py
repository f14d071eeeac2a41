"""Messages between workers and servers, and a server's inbox of the workers' pushes.

A push is two messages: whether the worker's whole gradient is finite (1) or not (0), and one flat tensor with the
gradients of the weights that the server holds, in their order. The answer is the new weights, also flat; then the
worker sends a receipt. One thread of a server talks to each worker; the server's own thread takes pushes out of the
inbox, so that all computation of a step happens in the step.

Messages are only tensors over gloo: torch's RPC, which carries functions, lets any process that reaches its port run
code and read files.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Set
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition, Thread

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.core.mesh import timeout_of


class PeerLost(RuntimeError):
    """A rank that must answer is gone or does not answer."""


def connect(group: dist.ProcessGroup, device: torch.device) -> dist.ProcessGroup:
    """Return a gloo group of the same ranks for messages, with the group's timeout; every rank of the world calls it.

    device: of the group; messages travel through host memory on any device.
    """
    ranks = dist.get_process_group_ranks(group)
    connected = dist.new_group(ranks, backend="gloo", timeout=timeout_of(group, device))
    assert isinstance(connected, dist.ProcessGroup)
    return connected


def timeout_s(group: dist.ProcessGroup) -> float:
    """Return the timeout of a message in a group that `connect` made, in seconds."""
    return timeout_of(group, torch.device("cpu")).total_seconds()


def flatten(tensors: Iterable[Tensor], out: Tensor) -> Tensor:
    """Copy the tensors one after another into `out`, which is flat and on the host; return it."""
    for part, tensor in zip(split(out, tensors := list(tensors)), tensors, strict=True):
        part.copy_(tensor)
    return out


def split(flat: Tensor, like: Iterable[Tensor]) -> list[Tensor]:
    """Return consecutive views of a flat tensor, in the shapes of these tensors; the rest is left out."""
    shapes = [tensor.shape for tensor in like]
    sizes = [shape.numel() for shape in shapes]
    parts = torch.split(flat[: sum(sizes)], sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


# The worker's side.


class ServerLink:
    """A worker's connection to one server, for the weights that the server holds."""

    def __init__(self, group: dist.ProcessGroup, server: int, weights: list[Tensor]) -> None:
        self.server = server
        self.size = sum(weight.numel() for weight in weights)
        self._group, self._weights = group, weights
        self._is_finite = torch.empty(1)
        self._gradients = torch.empty(self.size)
        self._answer = torch.empty(self.size)
        self._works: list[dist.Work | None] = []

    def push(self, *, is_finite: bool) -> None:
        """Start to send the gradients of the weights, and to receive the new weights."""
        flatten([_gradient_of(weight) for weight in self._weights], self._gradients)
        self._is_finite.fill_(float(is_finite))
        with self._losing():
            self._works = [
                dist.isend(self._is_finite, group=self._group, group_dst=self.server),
                dist.isend(self._gradients, group=self._group, group_dst=self.server),
                dist.irecv(self._answer, group=self._group, group_src=self.server),
            ]

    def pull(self) -> None:
        """Wait for the new weights, copy them, and send the receipt.

        Raises:
            PeerLost: the server is gone, or did not answer in time.
        """
        with self._losing():
            for work in self._works:
                assert work is not None, "both ranks belong to the group"
                work.wait()
            dist.send(torch.ones(1), group=self._group, group_dst=self.server)
        for weight, new in zip(self._weights, split(self._answer, self._weights), strict=True):
            weight.copy_(new)

    def _losing(self) -> _Losing:
        return _Losing(self.server)


class _Losing:
    """Turns gloo's errors into `PeerLost`."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError):
            raise PeerLost(f"rank {self._rank} timed out or is gone, so its answer is missing: {error}") from error


def _gradient_of(weight: Tensor) -> Tensor:
    assert weight.grad is not None, "backward reaches each weight"
    return weight.grad


# The server's side.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Push:
    """One worker's gradients of one step, for the weights that this server holds.

    gradients: flat, on the host; the worker's next push overwrites them.
    is_finite: whether the worker's whole gradient is finite.
    weights: the answer that the worker waits for, flat, on the host.
    """

    worker: int
    gradients: Tensor
    is_finite: bool
    weights: Future[Tensor]


class Inbox:
    """Queue of pushes in order of arrival; it also tracks answers in transfer and lost workers."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._changed = Condition()
        self._pushes: deque[Push] = deque()
        self._on_their_way: Counter[int] = Counter()
        self._lost: set[int] = set()

    def put(self, push: Push) -> None:
        """Add a push to the queue."""
        with self._changed:
            self._pushes.append(push)
            self._changed.notify()

    def note_arrival(self, worker: int) -> None:
        """Note that this worker has received the weights that answered its push."""
        with self._changed:
            self._on_their_way[worker] -= 1
            self._changed.notify()

    def note_loss(self, worker: int) -> None:
        """Note that this worker is gone."""
        with self._changed:
            self._lost.add(worker)
            self._changed.notify()

    def take(self, awaited: Set[int]) -> Push:
        """Wait for the next push, from any worker, and remove it.

        awaited: workers whose pushes the server needs to continue; the loss of others does not matter.

        Raises:
            PeerLost: no push is queued and an awaited worker is gone, or nobody pushed within the timeout.
        """
        with self._changed:
            self._wait(lambda: bool(self._pushes or self._lost & awaited), "gradients of", awaited)
            if self._pushes:
                return self._pushes.popleft()
        worker = min(self._lost & awaited)
        raise PeerLost(f"Connection closed: rank {worker} is gone, a worker whose gradients are missing")

    def answer(self, push: Push, weights: Tensor) -> None:
        """Send the weights to the worker that pushed."""
        with self._changed:
            self._on_their_way[push.worker] += 1
        push.weights.set_result(weights)

    def settle(self) -> None:
        """Wait until all workers that were answered have received their weights, or are gone.

        If the server ended sooner, weights that have not been sent would be lost.

        Raises:
            PeerLost: a worker did not acknowledge within the timeout.
        """
        with self._changed:
            self._wait(
                lambda: all(not answers or worker in self._lost for worker, answers in self._on_their_way.items()),
                "a receipt from",
                self._on_their_way.keys(),
            )

    def _wait(self, is_over: Callable[[], bool], what: str, workers: Set[int]) -> None:
        if not self._changed.wait_for(is_over, timeout=self._timeout_s):
            numbers = ", ".join(str(worker) for worker in sorted(workers))
            raise PeerLost(f"timed out after {self._timeout_s:g} s of waiting for {what} ranks {numbers}")


def serve_worker(group: dist.ProcessGroup, worker: int, size: int, inbox: Inbox) -> None:
    """Start the thread that talks to one worker until the worker is gone. size: elements of a push's gradients."""
    Thread(target=_talk, args=(group, worker, size, inbox), name=f"worker {worker}", daemon=True).start()


def _talk(group: dist.ProcessGroup, worker: int, size: int, inbox: Inbox) -> None:
    is_finite, gradients, receipt = torch.empty(1), torch.empty(size), torch.empty(1)
    try:
        while True:
            dist.recv(is_finite, group=group, group_src=worker)
            dist.recv(gradients, group=group, group_src=worker)
            weights: Future[Tensor] = Future()
            inbox.put(Push(worker=worker, gradients=gradients, is_finite=bool(is_finite), weights=weights))
            dist.send(weights.result(), group=group, group_dst=worker)
            dist.recv(receipt, group=group, group_src=worker)
            inbox.note_arrival(worker)
    except RuntimeError as error:
        if "Timed out" not in str(error):  # The inbox's own wait ends at the same time, with a better message.
            inbox.note_loss(worker)
