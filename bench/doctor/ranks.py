"""The machine as ranks would see it at this moment: read by the agent that starts them."""

from __future__ import annotations

from collections.abc import Callable

from bench.doctor.page import Entry
from bench.engines.roster import Engine
from bench.errors import InfrastructureFailed
from bench.machine import Machine


def machine_of_ranks(start: Callable[[], Engine], read_here: Callable[[], Machine]) -> tuple[Machine, Entry]:
    """The machine, and whether ranks can be started on it.

    An agent gives ranks settings of its own, and every run keeps the machine as its agent read it. So what is compared
    with a run is read by an agent too, and by this process only where none starts: then those settings are missing.
    """
    try:
        with start() as engine:
            return engine.machine(), Entry(name="ranks", value="can be started")
    except InfrastructureFailed as error:
        return read_here(), Entry(name="ranks", reason=f"they cannot be started: {error}")
