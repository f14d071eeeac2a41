"""RPC among the ranks of a process group: who can be called, for how long, and what is said of a rank that is gone.

Ranks meet in the group's own store, so that no port is guessed. A rank listens on the address of its host's name, or of
the interface that the environment's TP_SOCKET_IFNAME names, and not on that of the group.
Nothing shuts RPC down: a rank leaves by ending, and its connections tell the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, rpc  # type: ignore[attr-defined]  # Public, but in no __all__.
from torch.distributed.rendezvous import register_rendezvous_handler
from torch.futures import Future

from workloads.parts.timeouts import timeout_of

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
