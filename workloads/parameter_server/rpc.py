"""RPC between workers and servers: connecting ranks, losing them, and the inbox of what workers push to a server.

torch's threads only receive calls and put them into the inbox; the server's own thread takes them out, so that all
computation of a step happens in the step.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from threading import Condition
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, rpc  # type: ignore[attr-defined]  # Public, but in no __all__.
from torch.distributed.rendezvous import register_rendezvous_handler
from torch.futures import Future

from workloads.core.mesh import timeout_of

# RPC among the ranks of a process group.
#
# Ranks meet in the group's own store, so that no port is guessed. A rank listens on the address of its host's name,
# or of the interface that the environment's TP_SOCKET_IFNAME names, and not on that of the group. Nothing shuts RPC
# down: a rank leaves by ending, and the others notice that its connections close.

Answer = TypeVar("Answer")

SCHEME = "group"
FOR_EVER = 0
"""torch's value for a call without timeout."""


class PeerLost(RuntimeError):
    """A rank whose answer is needed is gone or does not answer."""


def connect(group: dist.ProcessGroup, device: torch.device) -> None:
    """Connect every rank of the group with every other; all must call this, and it returns when all have.

    What a rank's functions work on must be ready before. A call fails after the group's timeout.
    device: of the group; tensors travel through host memory on any device.
    """

    def meet(url: str, **settings: object) -> Iterator[tuple[Store, int, int]]:
        yield PrefixStore("rpc", group.get_group_store()), group.rank(), group.size()

    register_rendezvous_handler(SCHEME, meet)  # type: ignore[no-untyped-call]
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"{SCHEME}://", rpc_timeout=timeout_s(group, device))
    with warnings.catch_warnings():
        # torch's own set-up of RPC uses a group in a way that torch has deprecated.
        warnings.filterwarnings("ignore", message="You are using a Backend .* as a ProcessGroup", category=UserWarning)
        rpc.init_rpc(  # type: ignore[no-untyped-call]
            name_of(group.rank()), rank=group.rank(), world_size=group.size(), rpc_backend_options=options
        )


def timeout_s(group: dist.ProcessGroup, device: torch.device) -> float:
    """Return how long the group's collectives, and so calls among its ranks, may take."""
    return timeout_of(group, device).total_seconds()


def name_of(rank: int) -> str:
    """Return a rank's name in RPC."""
    return f"rank{rank}"


def answer_of(call: Future[Answer], rank: int) -> Answer:
    """Wait for the rank's answer to a call.

    Raises:
        PeerLost: the rank is gone, or did not answer in time.
    """
    try:
        return call.wait()
    except RuntimeError as error:
        raise PeerLost(f"rank {rank} timed out or is gone, so that its answer is missing: {error}") from error


def to_host(tensors: list[Any]) -> list[torch.Tensor]:
    """Detach the tensors and copy them to the host, where calls can carry them; those on the host are not copied.

    For tensors on a GPU this waits until they are computed and copied.
    """
    return [tensor.detach().to("cpu") for tensor in tensors]


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes that these tensors add to a call or to its answer."""
    return sum(tensor.nbytes for tensor in tensors)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Push:
    """One worker's gradients of one step, for the weights that this server holds, on the host.

    is_finite: whether the worker's whole gradient is finite.
    weights: the answer that the worker waits for.
    """

    worker: int
    gradients: list[Tensor]
    is_finite: bool
    weights: Future[list[Tensor]]


class Inbox:
    """Queue of the pushes that have arrived, in that order; it also tracks answers under way and workers lost."""

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

        awaited: workers without whose pushes the server cannot go on; the loss of others does not matter.

        Raises:
            PeerLost: no push is queued and an awaited worker is gone, or nobody pushed within the timeout.
        """
        with self._changed:
            self._wait(lambda: bool(self._pushes or self._lost & awaited), "gradients of", awaited)
            if self._pushes:
                return self._pushes.popleft()
        gone = min(self._lost & awaited)
        raise PeerLost(f"Connection closed: rank {gone} is gone, a worker whose gradients are missing")

    def answer(self, push: Push, weights: list[Tensor]) -> None:
        """Send the weights to the worker that pushed."""
        with self._changed:
            self._on_their_way[push.worker] += 1
        push.weights.set_result(weights)

    def settle(self) -> None:
        """Wait until all workers that were answered have received their weights, or are gone.

        If the server ended sooner, weights that are not sent yet would be lost.

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


_inboxes: list[Inbox] = []
"""This process's inbox, once it is open. It is global because a call carries only a function and its arguments: what
the function works on in the called process can only be found from its module."""


def open_inbox(inbox: Inbox) -> None:
    """Let calls of other ranks reach the inbox."""
    _inboxes.append(inbox)


def watch(inbox: Inbox, worker: int) -> None:
    """Tell the inbox when the worker is gone: a call that is never answered ends when its connection does."""
    line = rpc.rpc_async(name_of(worker), _never, timeout=FOR_EVER)
    line.add_done_callback(lambda _: inbox.note_loss(worker))


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def push(worker: int, gradients: list[Tensor], is_finite: bool) -> Future[list[Tensor]]:
    """Queue a worker's gradients on this server, and answer with the new weights later; workers call it by RPC."""
    weights: Future[list[Tensor]] = Future()
    _inboxes[-1].put(Push(worker=worker, gradients=gradients, is_finite=is_finite, weights=weights))
    return weights


def acknowledge(worker: int) -> None:
    """Note that a worker has received the weights of all servers; workers call it by RPC on each server."""
    _inboxes[-1].note_arrival(worker)


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def _never() -> Future[None]:
    return Future()
