"""The norm of a gradient of which each server holds a part: every server asks every other for its part's."""

from __future__ import annotations

import math
from collections import defaultdict
from threading import Lock

from torch.distributed import rpc
from torch.futures import Future

from workloads.parts.parameter_server.connection import answer_of, name_of


class Norms:
    """The norms of this server's part, by step, for the others to ask for before or after they are known.

    Others ask for this step's or the last one's: a server that is two steps ahead has all norms of the one between.
    """

    def __init__(self, server: int, servers: int) -> None:
        self._others = [other for other in range(servers) if other != server]
        self._parts: defaultdict[int, Future[float]] = defaultdict(Future)
        self._lock = Lock()
        self._step = 0

    def part(self, step: int) -> Future[float]:
        """The norm of this server's part in a step, when it is known."""
        with self._lock:
            return self._parts[step]

    def whole(self, norm: float) -> float:
        """The norm of the whole gradient, of whose part here this is the norm; all servers call it as often.

        Raises:
            PeerLost: a server is gone, or did not tell in time.
        """
        self.part(self._step).set_result(norm)
        calls = [(other, rpc.rpc_async(name_of(other), part_of, args=(self._step,))) for other in self._others]
        others = [answer_of(call, other) for other, call in calls]
        with self._lock:
            self._parts.pop(self._step - 1, None)
        self._step += 1
        return math.hypot(norm, *others)


_norms: list[Norms] = []
"""This process's, once they are open; see `inbox` for why they are found here."""


def open_norms(norms: Norms) -> None:
    """Let calls of other servers reach them."""
    _norms.append(norms)


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def part_of(step: int) -> Future[float]:
    """What a server calls on another: the norm of its part in that step."""
    return _norms[-1].part(step)
