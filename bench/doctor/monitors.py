"""Who holds the GPUs' performance monitors: a DCGM that is seen here, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.doctor.page import Entry
from collectors.dcgm.held_monitors import gpus_by_monitors, gpus_with_held_monitors
from collectors.dcgm.host_engine import signs_of_dcgm
from collectors.nvml.standing import Standing

_NAME = "performance monitors"
_RELEASE = "`dcgmi profile --pause` frees them, `dcgmi profile --resume` gives them back"


def monitors(standings: Sequence[Standing], root: Path = Path("/")) -> tuple[Entry, ...]:
    """Whether a DCGM runs, and what that means for what is measured here.

    Source: dcgmi-profile's page (pausing releases the resources to profilers); DCGM's page of profiling (GPUs before
    Hopper have monitors for one owner at a time, from Hopper on GPM is shared).
    """
    signs = signs_of_dcgm(root)
    return (Entry(name="DCGM", value="; ".join(signs) or "none is seen"), *_monitors(signs, standings))


def _monitors(signs: Sequence[str], standings: Sequence[Standing]) -> Iterator[Entry]:
    held = gpus_with_held_monitors(standings)
    others = {answer: gpus for answer, gpus in gpus_by_monitors(standings).items() if set(gpus) - set(held)}
    if held:
        yield Entry(name=_NAME, value=f"{_named(held)}: held by {_holder(signs)}; activity of SMs is a gap meanwhile")
    elif signs and "not supported" in others:
        yield Entry(
            name=_NAME,
            value=f"{_named(others['not supported'])}: no GPM, so DCGM holds them alone while it watches fields 1001"
            f" and up, and profilers' counters are refused; {_RELEASE}",
        )
    elif "answers" in others:
        yield Entry(name=_NAME, value=f"{_named(others['answers'])}: GPM answers, and nobody holds them alone")


def _holder(signs: Sequence[str]) -> str:
    if signs:
        return f"another client, perhaps this DCGM; {_RELEASE}"
    return (
        "a client that is not seen here, such as a DCGM in another container or a profiler; where it is DCGM,"
        f" {_RELEASE}"
    )


def _named(gpus: Sequence[str]) -> str:
    return f"GPU {gpus[0]}" if len(gpus) == 1 else f"GPUs {', '.join(gpus)}"
