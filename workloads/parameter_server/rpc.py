"""Where a server finds what workers push to it: calls put it in, and the server's own thread takes it out.

torch's threads receive calls and do nothing but hand them over, so that all computation of a step is in the step.
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

# RPC among the ranks of a process group: who can be called, for how long, and what is said of a rank that is gone.
#
# Ranks meet in the group's own store, so that no port is guessed. A rank listens on the address of its host's name,
# or of the interface that the environment's TP_SOCKET_IFNAME names, and not on that of the group. Nothing shuts RPC
# down: a rank leaves by ending, and its connections tell the others.

Answer = TypeVar("Answer")

SCHEME = "group"
FOR_EVER = 0
"""torch's timeout that never passes."""


class PeerLost(RuntimeError):
    """A rank whose answer is needed is gone or silent."""


def connect(group: dist.ProcessGroup, device: torch.device) -> None:
    """Make every rank of the group able to call every other; all of them call it, and it returns when all have.

    What a rank can be called for must stand ready before. A call fails after the group's timeout.
    device: of the group; tensors travel through host memory whatever it is.
    """

    def meet(url: str, **settings: object) -> Iterator[tuple[Store, int, int]]:
        yield PrefixStore("rpc", group.get_group_store()), group.rank(), group.size()

    register_rendezvous_handler(SCHEME, meet)  # type: ignore[no-untyped-call]
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"{SCHEME}://", rpc_timeout=timeout_s(group, device))
    with warnings.catch_warnings():
        # torch's own set-up of RPC uses a group in a way that torch deprecates.
        warnings.filterwarnings("ignore", message="You are using a Backend .* as a ProcessGroup", category=UserWarning)
        rpc.init_rpc(  # type: ignore[no-untyped-call]
            name_of(group.rank()), rank=group.rank(), world_size=group.size(), rpc_backend_options=options
        )


def timeout_s(group: dist.ProcessGroup, device: torch.device) -> float:
    """How long the group's collectives, and so the calls among its ranks, may take."""
    return timeout_of(group, device).total_seconds()


def name_of(rank: int) -> str:
    """What a rank is called by."""
    return f"rank{rank}"


def answer_of(call: Future[Answer], rank: int) -> Answer:
    """What the rank answers, when it does.

    Raises:
        PeerLost: it is gone, or did not answer in time.
    """
    try:
        return call.wait()
    except RuntimeError as error:
        raise PeerLost(f"rank {rank} timed out or is gone, so that its answer is missing: {error}") from error


def to_host(tensors: list[Any]) -> list[torch.Tensor]:
    """The tensors without their history, on the host, where calls can carry them; those that are there are not copied.

    On a GPU this waits until they are computed and copied.
    """
    return [tensor.detach().to("cpu") for tensor in tensors]


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """What these tensors add to a call or to its answer."""
    return sum(tensor.nbytes for tensor in tensors)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Push:
    """One worker's gradients of one step, for the weights that this server holds, on the host.

    is_finite: whether the worker's whole gradient is.
    weights: what the worker waits for.
    """

    worker: int
    gradients: list[Tensor]
    is_finite: bool
    weights: Future[list[Tensor]]


class Inbox:
    """The pushes that have arrived and are not taken yet, in the order in which they came."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._changed = Condition()
        self._pushes: deque[Push] = deque()
        self._on_their_way: Counter[int] = Counter()
        self._lost: set[int] = set()

    def put(self, push: Push) -> None:
        """Hand it over to whoever takes next."""
        with self._changed:
            self._pushes.append(push)
            self._changed.notify()

    def note_arrival(self, worker: int) -> None:
        """This worker has the weights that it was answered with."""
        with self._changed:
            self._on_their_way[worker] -= 1
            self._changed.notify()

    def note_loss(self, worker: int) -> None:
        """No more will come from this worker."""
        with self._changed:
            self._lost.add(worker)
            self._changed.notify()

    def take(self, awaited: Set[int]) -> Push:
        """The next push, whoever's it is.

        awaited: workers without whose pushes the server cannot go on; that others are gone is no matter.

        Raises:
            PeerLost: one of them is gone, or nobody pushed within the timeout.
        """
        with self._changed:
            self._wait(lambda: bool(self._pushes or self._lost & awaited), "gradients of", awaited)
            if self._pushes:
                return self._pushes.popleft()
        gone = min(self._lost & awaited)
        raise PeerLost(f"Connection closed: rank {gone} is gone, a worker whose gradients are missing")

    def answer(self, push: Push, weights: list[Tensor]) -> None:
        """Send the weights to who pushed."""
        with self._changed:
            self._on_their_way[push.worker] += 1
        push.weights.set_result(weights)

    def settle(self) -> None:
        """Wait until all workers that were answered have their weights, or are gone.

        A server that left sooner would take with it what is not sent yet.

        Raises:
            PeerLost: a worker did not say so within the timeout.
        """
        with self._changed:
            self._wait(lambda: not self._waiting(), "a receipt from", self._on_their_way.keys())

    def _waiting(self) -> set[int]:
        return {worker for worker, answers in self._on_their_way.items() if answers} - self._lost

    def _wait(self, is_over: Callable[[], bool], what: str, workers: Set[int]) -> None:
        if not self._changed.wait_for(is_over, timeout=self._timeout_s):
            numbers = ", ".join(str(worker) for worker in sorted(workers))
            raise PeerLost(f"timed out after {self._timeout_s:g} s of waiting for {what} ranks {numbers}")


_inboxes: list[Inbox] = []
"""This process's, once it is open. A call names a function and brings its arguments: what the function works on in the
process that is called can only be found from its module."""


def open_inbox(inbox: Inbox) -> None:
    """Let calls of other ranks reach it."""
    _inboxes.append(inbox)


def watch(inbox: Inbox, worker: int) -> None:
    """Have the inbox told when the worker is gone: a call that is never answered ends when its connection does."""
    line = rpc.rpc_async(name_of(worker), _never, timeout=FOR_EVER)
    line.add_done_callback(lambda _: inbox.note_loss(worker))


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def push(worker: int, gradients: list[Tensor], is_finite: bool) -> Future[list[Tensor]]:
    """What a worker calls on a server: its gradients for the new weights, which are answered when they are there."""
    weights: Future[list[Tensor]] = Future()
    _inboxes[-1].put(Push(worker=worker, gradients=gradients, is_finite=is_finite, weights=weights))
    return weights


def acknowledge(worker: int) -> None:
    """What a worker calls on each server when it has the weights of all."""
    _inboxes[-1].note_arrival(worker)


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def _never() -> Future[None]:
    return Future()
