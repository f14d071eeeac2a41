"""Collectors for tests: one that counts its reads, and may do something else at a read, such as hang."""

from __future__ import annotations

import threading
from collections.abc import Callable

from collectors.metrics import host
from collectors.metrics.metric import Sample


class FakeCollector:
    """Counts its reads into its samples. at_read: what else happens at a read, by its number."""

    def __init__(
        self, name: str = "fake", absent: tuple[str, ...] = (), at_read: dict[int, Callable[[], None]] | None = None
    ) -> None:
        self.name = name
        self.absent = absent
        self.reads = 0
        self.closed = 0
        self._at_read = at_read or {}

    def read(self) -> list[Sample]:
        self.reads += 1
        self._at_read.get(self.reads - 1, lambda: None)()
        return [host.HOST_LOAD.at(self.reads)]

    def close(self) -> None:
        self.closed += 1


class FakeHang:
    """Hangs until it is let go. has_begun: when it hangs."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self._let_go = threading.Event()

    def __call__(self) -> None:
        self.has_begun.set()
        self._let_go.wait()

    def let_go(self) -> None:
        self._let_go.set()


def lose_its_way() -> None:
    """What a collector does that fails."""
    raise RuntimeError("lost my way")


def ended(name: str) -> None:
    """Wait for the threads of that name."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join()
