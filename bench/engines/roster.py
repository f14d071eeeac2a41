"""Every engine there is, one line each. Engines differ in how an agent gets onto a node, and in nothing else."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from bench.engines.local import LocalEngine
from bench.engines.messages import Progress, TrialEnded, TrialOrder
from bench.machine import Machine


class Engine(Protocol):
    """Places agents and passes orders on to them. Used in a `with`, at whose end none of its processes is left."""

    name: str

    def __enter__(self) -> Engine: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def machine(self) -> Machine: ...
    def stop(self) -> None: ...
    def run(self, order: TrialOrder, progress: Callable[[Progress], None]) -> TrialEnded: ...


ENGINES: dict[str, Callable[[], Engine]] = {
    LocalEngine.name: LocalEngine,
}
