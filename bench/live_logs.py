"""One log of a run that goes on: followed until that turns out impossible, and what of a rank's is true now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from collectors.catalogue import memory
from collectors.catalogue.step import (
    DATA_WAIT_SECONDS,
    MEASURED_MFU,
    MFU,
    PHASE_SECONDS,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
)
from collectors.log_reader import Follower, NewerSchema
from collectors.metric import Sample
from collectors.sample_log import Mark, Opened, Reading, Record

SPEED = frozenset(
    metric.name for metric in (STEP_SECONDS, PHASE_SECONDS, DATA_WAIT_SECONDS, TOKENS_PER_SECOND, MFU, MEASURED_MFU)
)
"""What only measured steps may say: warm-up, the profiler and the memory tracker make others slower."""

ACCOUNT = frozenset(
    metric.name
    for metric in (
        memory.ALLOCATED_BYTES,
        memory.RESERVED_BYTES,
        memory.ACTIVE_BYTES,
        memory.INACTIVE_SPLIT_BYTES,
        memory.PEAK_BYTES,
        memory.PHASE_PEAK_BYTES,
        memory.ALLOCATION_RETRIES,
        memory.OUT_OF_MEMORY,
    )
)
"""What the allocator is not asked for in each step where steps are short; the last account is shown until the next."""

STEP_MARKS = frozenset[Mark]({"warm_up", "measured"})


class LogFollower:
    """A log that is followed until it turns out that it cannot be."""

    def __init__(self, path: Path, on_notice: Callable[[str], None]) -> None:
        self._path = path
        self._follower: Follower | None = Follower(path)
        self._on_notice = on_notice

    def newest(self) -> list[Record]:
        """What was finished since the last look and is not old by now; nothing of a log that was given up."""
        if self._follower is None:
            return []
        try:
            records = self._follower.newest()
        except NewerSchema as error:
            return self._give_up(f"a log is not shown: {error}")
        except OSError as error:
            if not self._path.parent.is_dir():
                return []  # The folder is gone, which is said of the run.
            return self._give_up(f"a log is not shown: {self._path}: {error.strerror}")
        for line in self._follower.left_out:
            self._on_notice(f"{self._path.parent}/{line}")
        self._follower.left_out.clear()
        return records

    def _give_up(self, reason: str) -> list[Record]:
        self._follower = None
        self._on_notice(reason)
        return []


@dataclass(slots=True)
class LiveRank:
    """What a rank said last, by the kind of step it said it of; the newest kind is the last of the dictionary."""

    opened: Opened | None = None
    newest: dict[str, list[Sample]] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        """Replace what the record makes old.

        A fresh trial makes steps old, but not what is measured once a trial: live tensors and traced steps stay until
        they are measured again.
        """
        match record:
            case Opened():
                self.opened = record
                self.newest.pop("step", None)
                self.newest.pop("account", None)
            case Reading():
                kind = "step" if record.mark in STEP_MARKS else record.mark
                shown = [sample for sample in record.samples if record.mark == "measured" or sample.metric not in SPEED]
                self._replace(kind, [sample for sample in shown if sample.metric not in ACCOUNT])
                if account := [sample for sample in shown if sample.metric in ACCOUNT]:
                    self._replace("account", account)

    def _replace(self, kind: str, samples: list[Sample]) -> None:
        """As the newest."""
        self.newest.pop(kind, None)
        self.newest[kind] = samples

    def samples(self) -> Iterator[Sample]:
        """All of it, the newest first."""
        for samples in reversed(self.newest.values()):
            yield from samples
