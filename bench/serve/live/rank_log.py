"""Follows the log of one rank or node until it cannot be read, and keeps the current samples of a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from collectors.files import open_to_read
from collectors.metrics import rank as rank_metrics
from collectors.metrics.metric import Sample
from collectors.metrics.rank import DATA_WAIT_SECONDS, MEASURED_MFU, MFU, PHASE_SECONDS, STEP_SECONDS, TOKENS_PER_SECOND
from collectors.sample_log import Follower, Mark, NewerSchema, Newest, Opened, Reading, Record

_SPEED = frozenset(
    metric.name for metric in (STEP_SECONDS, PHASE_SECONDS, DATA_WAIT_SECONDS, TOKENS_PER_SECOND, MFU, MEASURED_MFU)
)
"""Metrics taken from measured steps only: warm-up, the profiler and the memory tracker make other steps slower."""

_ALLOCATOR = frozenset(
    metric.name
    for metric in (
        rank_metrics.ALLOCATED_BYTES,
        rank_metrics.RESERVED_BYTES,
        rank_metrics.ACTIVE_BYTES,
        rank_metrics.INACTIVE_SPLIT_BYTES,
        rank_metrics.PEAK_BYTES,
        rank_metrics.PHASE_PEAK_BYTES,
        rank_metrics.ALLOCATION_RETRIES,
        rank_metrics.OUT_OF_MEMORY,
    )
)
"""Metrics of the allocator, which short steps do not query each time; shown until the next account."""

_STEP_MARKS = frozenset[Mark]({"warm_up", "measured"})


_NOTHING = Newest(records=[], steps=[], is_anew=False)


class LogFollower:
    """Follows a log until it cannot be read."""

    def __init__(self, path: Path, on_notice: Callable[[str], None]) -> None:
        self._path = path
        self._follower: Follower | None = Follower(path)
        self._on_notice = on_notice

    def newest(self) -> Newest:
        """Return the records since the last look that are not outdated, and all steps of a rank.

        Returns nothing for a log that was given up.
        """
        if self._follower is None:
            return _NOTHING
        try:
            newest = self._follower.newest_and_steps()
        except NewerSchema as error:
            return self._give_up(f"a log is not shown: {error}")
        except OSError as error:
            if not self._path.parent.is_dir():
                return _NOTHING  # The folder is gone, which `RunLogs` reports.
            return self._give_up(f"a log is not shown: {self._path}: {error.strerror}")
        for line in self._follower.left_out:
            self._on_notice(f"{self._path.parent}/{line}")
        self._follower.left_out.clear()
        return newest

    def _give_up(self, reason: str) -> Newest:
        self._follower = None
        self._on_notice(reason)
        return _NOTHING


@dataclass(slots=True)
class LiveRank:
    """The newest samples of a rank, by the kind of step; the newest kind is the last of the dictionary.

    progress_ns: when it last ended a step or began a later trial; None before its first step, which may be compiled.
    """

    opened: Opened | None = None
    progress_ns: int | None = None
    newest: dict[str, list[Sample]] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        """Replace the samples that the record outdates.

        A new trial outdates steps, but not what is measured once per trial: live tensors and traced steps stay until
        they are measured again.
        """
        if isinstance(record, Reading) or (isinstance(record, Opened) and self.progress_ns is not None):
            self.progress_ns = record.time_ns
        match record:
            case Opened():
                self.opened = record
                self.newest.pop("step", None)
                self.newest.pop("account", None)
            case Reading():
                kind = "step" if record.mark in _STEP_MARKS else record.mark
                shown = [
                    sample for sample in record.samples if record.mark == "measured" or sample.metric not in _SPEED
                ]
                self._replace(kind, [sample for sample in shown if sample.metric not in _ALLOCATOR])
                if account := [sample for sample in shown if sample.metric in _ALLOCATOR]:
                    self._replace("account", account)

    def _replace(self, kind: str, samples: list[Sample]) -> None:
        """Put the samples last: they are the newest."""
        self.newest.pop(kind, None)
        self.newest[kind] = samples

    def samples(self) -> Iterator[Sample]:
        """Yield all samples, the newest kind first."""
        for samples in reversed(self.newest.values()):
            yield from samples


def host_of(path: Path) -> str | None:
    """Return the host on which a rank's log was begun; None if its first line is missing or unreadable."""
    try:
        with open_to_read(path) as file:
            line = file.readline(_LONGEST_HEAD)
        return msgspec.json.decode(line, type=Opened).host
    except (OSError, msgspec.DecodeError):
        return None


_LONGEST_HEAD = 65536
"""Most bytes of the first line of one of our logs."""
