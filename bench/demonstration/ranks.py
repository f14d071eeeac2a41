"""Ranks of a run that is made up: one on each sound GPU of the recorded node, all as slow as the one that grows hot."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from collectors.catalogue import communication, info, memory, step
from collectors.catalogue.placement import RANK_GPU, RANK_GPU_MEMORY
from collectors.exporter import Owned
from collectors.metric import Sample

RUN = "demonstration"
STRATEGY, SERIES, SLOT, HOST = "ddp", "demonstration-ddp", "0", "demonstration"
RANKS = 6
"""The recorded node has two GPUs more: one falls off the bus, one is split by MIG."""
LAP_S = 600.0
HOT_S, COOL_S = 240.0, 360.0
STEP_S, HOT_STEP_S = 0.5, 0.62
STEP_TOKENS = 32_768
_PHASES = {"data": 0.01, "forward": 0.29, "backward": 0.61, "optimizer": 0.06}
"""Shares of a step; the rest is waiting."""
_DATA_WAIT = 0.06
"""What the host waits for a batch, as a share of a step; the GPU has work queued for most of it."""
_MFU_RATIO = 0.41
_EXPOSED, _HIDDEN, _COMPUTED = 0.07, 0.21, 0.88
"""Shares of a traced step: communication that is exposed, communication that is hidden, computation."""
_GIB = 1 << 30
_STATE = {"parameters": 13 * _GIB, "gradients": 13 * _GIB, "optimizer": 26 * _GIB}
_ALLOCATED, _PEAK, _RESERVED = 54 * _GIB, 97 * _GIB, 104 * _GIB
_ACTIVE, _INACTIVE_SPLIT = _ALLOCATED + _GIB // 4, 3 * _GIB
"""Active is what is allocated, and what messages that are still under way hold; split is the fragmentation."""
_CONTEXT = _GIB // 2
"""What the driver counts for a process beyond what torch reserves."""
_PHASE_PEAKS = {"data": 54 * _GIB, "forward": 91 * _GIB, "backward": 97 * _GIB, "optimizer": 81 * _GIB}


class MadeRanks:
    """What the logs of such a run would say now. It goes on for as long as it is asked.

    clock_s: never set back; the run begins when this is made.
    """

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._begun_s = clock_s()

    def samples(self) -> Iterator[Owned]:
        """The run, and its ranks' newest step, traced step and memory."""
        at_s = self._clock_s() - self._begun_s
        yield info.RUN_INFO.at(1, run=RUN, slot=SLOT, strategy=STRATEGY, ranks=str(RANKS), series=SERIES), {}
        for rank in range(RANKS):
            owner = {"rank": str(rank), "slot": SLOT}
            yield info.RANK_INFO.at(1, run=RUN, host=HOST), owner
            yield RANK_GPU.at(1, run=RUN, gpu=str(rank), slice=""), owner
            yield RANK_GPU_MEMORY.at(_RESERVED + _CONTEXT, gpu=str(rank), slice=""), owner
            for sample in (*_step(at_s, rank), *_traced(at_s), *_memory()):
                yield sample, owner


def steps_by(at_s: float) -> float:
    """Steps that the ranks have made since the run began; it is hot from HOT_S to COOL_S of each lap."""
    laps, into_s = divmod(at_s, LAP_S)
    hot_s = laps * (COOL_S - HOT_S) + min(max(into_s - HOT_S, 0.0), COOL_S - HOT_S)
    return hot_s / HOT_STEP_S + (at_s - hot_s) / STEP_S


def _step_s(at_s: float) -> float:
    return HOT_STEP_S if HOT_S <= at_s % LAP_S < COOL_S else STEP_S


def _step(at_s: float, rank: int) -> Iterator[Sample]:
    step_s = _step_s(at_s) * (1 + (rank - RANKS / 2) / 1e3)
    yield step.STEP_SECONDS.at(step_s)
    for phase, share in _PHASES.items():
        yield step.PHASE_SECONDS.at(share * step_s, phase=phase)
    yield step.DATA_WAIT_SECONDS.at(_DATA_WAIT * step_s)
    yield step.TOKENS.at(STEP_TOKENS * math.floor(steps_by(at_s)))
    yield step.TOKENS_PER_SECOND.at(STEP_TOKENS / step_s)
    yield step.MFU.at(_MFU_RATIO * STEP_S / step_s)
    yield step.LOSS.at(1.8 + 9.0 * math.exp(-steps_by(at_s % LAP_S) / 300) + rank / 1e3)
    yield step.LEARNING_RATE.at(3e-4)
    yield step.OBSERVER_SECONDS.at(2e-4)


def _traced(at_s: float) -> Iterator[Sample]:
    step_s = _step_s(at_s)
    yield communication.TRACED_STEP_SECONDS.at(step_s)
    yield communication.COMPUTE_SECONDS.at(_COMPUTED * step_s)
    yield communication.COMMUNICATION_SECONDS.at((_EXPOSED + _HIDDEN) * step_s)
    yield communication.OVERLAP_SECONDS.at(_HIDDEN * step_s)
    yield communication.EXPOSED_COMMUNICATION_SECONDS.at(_EXPOSED * step_s)
    yield communication.IDLE_SECONDS.at((1 - _COMPUTED - _EXPOSED) * step_s)
    yield communication.OVERLAP_RATIO.at(_HIDDEN / (_EXPOSED + _HIDDEN))
    yield communication.EXPOSED_COMMUNICATION_RATIO.at(_EXPOSED)


def _memory() -> Iterator[Sample]:
    yield memory.ALLOCATED_BYTES.at(_ALLOCATED)
    yield memory.RESERVED_BYTES.at(_RESERVED)
    yield memory.ACTIVE_BYTES.at(_ACTIVE)
    yield memory.INACTIVE_SPLIT_BYTES.at(_INACTIVE_SPLIT)
    yield memory.PEAK_BYTES.at(_PEAK)
    for phase, peak_bytes in _PHASE_PEAKS.items():
        yield memory.PHASE_PEAK_BYTES.at(peak_bytes, phase=phase)
    yield memory.ALLOCATION_RETRIES.at(0)
    yield memory.OUT_OF_MEMORY.at(0)
    for part, part_bytes in _STATE.items():
        yield memory.STATE_BYTES.at(part_bytes, part=part)
    yield memory.RESIDENT_BYTES.at(6 * _GIB)
