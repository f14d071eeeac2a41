"""InfiniBand ports that are made up, since few who look at a demonstration have any; one loses its link for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bench.demonstration.ranks import LAP_S, steps_by
from collectors.catalogue import host
from collectors.exporter import Owned
from collectors.metric import Sample

DEVICES = 4
BROKEN = "made_3"
DOWN_S, UP_S = 120.0, 180.0
"""When, in each lap, the broken port has no link."""
LINK_BYTES_PER_S = 400e9 / 8
_STEP_BYTES = 6.5e9
"""That a port carries each way for a step of the made run."""


class MadePorts:
    """What the kernel would tell of such ports. clock_s: never set back; the run begins when this is made."""

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._begun_s = clock_s()

    def samples(self) -> Iterator[Owned]:
        """State, speed, bytes and errors of each port."""
        at_s = self._clock_s() - self._begun_s
        for number in range(DEVICES):
            for sample in _port(f"made_{number}", at_s):
                yield sample, {}


def _port(device: str, at_s: float) -> Iterator[Sample]:
    port = {"device": device, "port": "1"}
    laps, into_s = divmod(at_s, LAP_S)
    is_up = not (device == BROKEN and DOWN_S <= into_s < UP_S)
    state, physical_state = ("ACTIVE", "LinkUp") if is_up else ("DOWN", "Polling")
    yield host.HOST_INFINIBAND_INFO.at(1, **port, layer="InfiniBand", state=state, physical_state=physical_state)
    if is_up:
        yield host.HOST_INFINIBAND_LINK.at(LINK_BYTES_PER_S, **port)
    for direction in ("received", "sent"):
        yield host.HOST_INFINIBAND_BYTES.at(round(_STEP_BYTES * steps_by(at_s)), **port, direction=direction)
    yield host.HOST_INFINIBAND_WAIT.at(round(1e4 * steps_by(at_s)), **port)
    times_down = laps + (into_s >= DOWN_S) if device == BROKEN else 0
    yield host.HOST_INFINIBAND_ERRORS.at(times_down, **port, kind="link_downed")
    yield host.HOST_INFINIBAND_ERRORS.at(37 * times_down, **port, kind="symbol_error")
