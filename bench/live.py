"""What the logs of the runs that go on now say last: the live samples, each with the labels of its owner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.case import Case
from bench.errors import Misuse
from bench.run import CaseFile, case_file, machine_of
from bench.run_folders import running_folders
from bench.series import series_of
from collectors.catalogue.info import RANK_INFO, RUN_INFO
from collectors.catalogue.step import PHASE_SECONDS, STEP_SECONDS
from collectors.exporter import Owned
from collectors.metric import Sample
from collectors.sample_log import Follower, Mark, NewerSchema, Opened, Polled, Reading, Record

SPEED = frozenset({STEP_SECONDS.name, PHASE_SECONDS.name})
"""What only measured steps may say: warm-up, the profiler and the memory tracker make others slower."""

STEP_MARKS = frozenset[Mark]({"warm_up", "measured"})


class LiveRuns:
    """Follows the logs of all runs of a folder that somebody works on; may be asked by several threads.

    on_notice: is told, once each, what cannot be read or is gone.
    """

    def __init__(self, runs: Path, *, on_notice: Callable[[str], None]) -> None:
        self._runs = runs
        self._on_notice = on_notice
        self._followed: dict[str, _Run] = {}
        self._ended: set[str] = set()
        self._looks = 0
        self._lock = threading.Lock()

    def samples(self) -> list[Owned]:
        """The newest samples of every rank and node; of a run that has ended none."""
        with self._lock:
            self._look_for_runs()
            self._looks += 1
            for run in self._followed.values():
                run.look(self._looks)
            ranks = (owned for run in self._followed.values() for owned in run.samples())
            return [*ranks, *self._node_samples()]

    def _look_for_runs(self) -> None:
        try:
            self._take_up(*self._found())
        except OSError as error:
            self._followed.clear()
            self._on_notice(f"{self._runs} cannot be read ({error.strerror}): no live series are shown")

    def _found(self) -> tuple[set[str], dict[str, Path]]:
        """Names of runs that had begun before we looked for locks, and the folders of those that go on."""
        known = self._runs.iterdir() if self._runs.is_dir() else ()
        begun = {path.name for path in known if path.name not in self._ended and (path / "case.json").exists()}
        return begun, {folder.name: folder for folder in running_folders(self._runs, self._ended)}

    def _take_up(self, begun: set[str], running: dict[str, Path]) -> None:
        self._ended |= begun - running.keys()  # For good: a run is never taken up again.
        for name in self._followed.keys() - running.keys():
            run = self._followed.pop(name)
            if not run.folder.is_dir():
                self._on_notice(f"{run.folder} was deleted while its run went on: its series are no longer shown")
        for name, folder in running.items():
            if name not in self._followed:
                try:
                    hardware = machine_of(folder).hardware(case_file(folder).case.device)
                    self._followed[name] = _Run(folder, case_file(folder), hardware, self._on_notice)
                except Misuse as error:
                    self._ended.add(name)
                    self._on_notice(f"a run is not shown: {error}")

    def _node_samples(self) -> list[Owned]:
        """What each node's collectors said last, in whichever run: a series that is missing there is gone."""
        newest: dict[str, tuple[int, Polled]] = {}
        for name, (look, polled) in (item for run in self._followed.values() for item in run.polled().items()):
            # By when we read it, since the node's clock may jump; by its clock where that is the same.
            if name not in newest or (look, polled.time_ns) > (newest[name][0], newest[name][1].time_ns):
                newest[name] = (look, polled)
        return [(sample, {}) for _, polled in newest.values() for sample in polled.samples]


class _Run:
    """One run that goes on, and the logs in its folder."""

    def __init__(self, folder: Path, file: CaseFile, hardware: str, on_notice: Callable[[str], None]) -> None:
        self.folder = folder
        self._file = file
        self._hardware = hardware
        self._ranks = {str(rank): _Rank() for rank in range(file.case.ranks)}
        self._nodes: dict[str, tuple[int, Polled]] = {}
        self._logs: dict[str, _Log] = {}
        self._on_notice = on_notice

    def look(self, number: int) -> None:
        """Take what was appended to the logs since the last look."""
        for rank, newest in self._ranks.items():
            for record in self._log(self.folder / f"rank{rank}.jsonl").newest():
                newest.take(record)
        for path in self.folder.glob("node*.jsonl"):
            for record in self._log(path).newest():
                if isinstance(record, Polled):
                    self._nodes[path.name] = (number, record)

    def samples(self) -> Iterator[Owned]:
        """The run's own series, and its ranks'."""
        slot = str(self._file.slot)
        yield _run_info(self._file.run, slot, self._file.case, self._hardware), {}
        for rank, newest in self._ranks.items():
            owner = {"rank": rank, "slot": slot}
            if newest.opened is not None:
                yield RANK_INFO.at(1, run=self._file.run, host=newest.opened.host), owner
            for sample in newest.samples():
                yield sample, owner

    def polled(self) -> Mapping[str, tuple[int, Polled]]:
        """What each of its nodes said last, and at which look, by the name of the node's log."""
        return self._nodes

    def _log(self, path: Path) -> _Log:
        if path.name not in self._logs:
            self._logs[path.name] = _Log(path, self._on_notice)
        return self._logs[path.name]


def _run_info(run: str, slot: str, case: Case, hardware: str) -> Sample:
    return RUN_INFO.at(
        1, run=run, slot=slot, strategy=case.strategy, ranks=str(case.ranks), series=series_of(case, hardware)
    )


class _Log:
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
class _Rank:
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
            case Reading():
                kind = "step" if record.mark in STEP_MARKS else record.mark
                self.newest.pop(kind, None)
                self.newest[kind] = [
                    sample for sample in record.samples if record.mark == "measured" or sample.metric not in SPEED
                ]

    def samples(self) -> Iterator[Sample]:
        """All of it, the newest first."""
        for samples in reversed(self.newest.values()):
            yield from samples
