"""Which GPUs' performance monitors something else holds, such as a DCGM that profiles or a profiler."""

from __future__ import annotations

from collections.abc import Iterable

from pynvml import NVML_ERROR_IN_USE

from collectors.nvml.library import NVMLError
from collectors.nvml.standing import Answer, Standing

_MONITORS = "GPM"
"""What questions to the monitors are called, or begin with."""


def gpus_with_held_monitors(standings: Iterable[Standing]) -> tuple[str, ...]:
    """The GPUs whose monitors refused because they are in use; their samples are a gap for as long as that lasts."""
    in_use = str(NVMLError(NVML_ERROR_IN_USE))  # A standing keeps NVML's words, and not its number.
    held = (one.gpu for one in standings if one.question.startswith(_MONITORS) and one.reason == in_use)
    return tuple(dict.fromkeys(held))


def gpus_by_monitors(standings: Iterable[Standing]) -> dict[Answer, tuple[str, ...]]:
    """GPUs by how they stand to being monitored; a GPU that was not asked, or not yet twice, is nowhere."""
    found: dict[Answer, list[str]] = {}
    for one in standings:
        if one.question == _MONITORS:
            found.setdefault(one.answer, []).append(one.gpu)
    return {answer: tuple(gpus) for answer, gpus in found.items()}
