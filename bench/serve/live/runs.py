"""Live samples of the active runs: the newest samples of each log with their owner's labels, and counts of its steps.

`RunLogs` reads the logs of a folder; `looks.LiveRuns` does so in a separate thread.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import Misuse
from bench.results.watched.run import is_watched, read_watch_file
from bench.serve.gpu_placement import Place, RanksByPid, with_ranks
from bench.serve.info_labels import case_labels, membership
from bench.serve.live.many_ranks import MOST_RANKS, ShownRanks, Spread
from bench.serve.live.rank_log import LiveRank, LogFollower, host_of
from bench.serve.live.step_counts import StepCounts
from bench.serve.live.watched_log import WatchedLog, watched_host_of
from bench.store.active_runs import FollowedFolders
from bench.store.run_dir import case_file, machine_of
from bench.store.summary import series_of
from collectors.metrics.agent import RANK_INFO, RUN_INFO, RUN_LAST_PROGRESS, RUN_STALL_LIMIT
from collectors.metrics.gpu import RANK_GPU, RANK_GPU_MEMORY
from collectors.metrics.rank import COMPUTE_SECONDS, PEAK_BYTES, PHASE_SECONDS, RESIDENT_BYTES
from collectors.metrics.run_counts import STEPS
from collectors.prometheus.exposition import Owned
from collectors.sample_log import NodeState, Opened
from workloads.registry import SPECS

_LOG = re.compile(r"(rank|node)(0|[1-9][0-9]*)\.jsonl", re.ASCII)
_WATCHED = re.compile(r"watch_(rank)(0|[1-9][0-9]*)\.jsonl", re.ASCII)
_PROBES = frozenset(spec.name for spec in SPECS if spec.kind == "probe")


LOGS_A_LOOK = 64
"""How many changed logs a look reads in a run with many ranks: those of the shown ranks, and others in turn. A run of
4,096 ranks that all log is read in 100 looks; all its logs at once would take seconds of CPU time."""
HEADS_A_LOOK = 512
"""How many new logs a look reads to find their ranks' host, if only one host's ranks are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What to show of the runs in a folder.

    has_nodes: also show the runs' nodes from the logs; False if this node is watched directly.
    of_host: show only ranks on this host; None shows all ranks in the folder.
    most_ranks: if a run has more ranks, show only some of them, and statistics over all.
    """

    has_nodes: bool = True
    of_host: str | None = None
    most_ranks: int = MOST_RANKS


class _ActiveRun:
    """An active run, and the logs in its folder.

    nodes: by the name of a node's log, the number of the last read that found something new, and the node's state then.

    Raises:
        Misuse: the run's case or machine cannot be read.
    """

    def __init__(self, folder: Path, on_notice: Callable[[str], None], shown: Shown) -> None:
        self.folder = folder
        self._file = case_file(folder)
        self.slot = self._file.slot
        self.nodes: dict[str, tuple[int, NodeState]] = {}
        case, machine = self._file.case, machine_of(folder)
        hardware = machine.hardware(case.device)
        self._series = series_of(case, hardware)
        self._labels = {
            **case_labels(case, hardware),
            "nodes": str(case.nodes),
            **membership(self._file.purpose),
            "commit": (read_watch_file(folder).git_commit if is_watched(folder) else machine.commit) or "",
        }
        self._ranks: dict[str, LiveRank] = {}  # In order; only those with a log here.
        self._logs: dict[str, LogFollower | WatchedLog] = {}
        self._changes: dict[str, tuple[int, int, int]] = {}  # By name: the log's state at its last read.
        self._steps: StepCounts | None = None
        if self._file.case.strategy not in _PROBES:
            self._steps = StepCounts(run=self._file.run, slot=self.slot, on_notice=on_notice)
        self._on_notice = on_notice
        self._is_watched = self._file.case.watched_name is not None
        self._stall_limit_s = 0.0
        self._shown = shown
        self._elsewhere: set[str] = set()  # Ranks on other hosts that are not shown.
        self._spread: Spread | None = None  # Only for many ranks, like the rest below.
        self._choice = ShownRanks()
        self._chosen: frozenset[str] = frozenset()
        self._prefix = f"{folder}{os.sep}"
        self._behind: dict[str, float] = {}  # Steps by which a rank was behind the first one at its last look.
        self._turn = 0
        self._placed, self._unplaced = set[str](), set[str]()  # On this node's GPUs; to be looked up.

    def read(self, number: int, *, is_last: bool = False) -> None:
        """Read what was appended to the logs since the last read. number: counts the reads.

        is_last: read all logs, however many ranks there are.
        """
        ranks, nodes = self._owners()
        if new := set(ranks) - self._ranks.keys():
            known = self._ranks | {rank: LiveRank() for rank in new}
            self._ranks = {rank: known[rank] for rank in sorted(known, key=int)}
        if self._spread is None and len(self._ranks) > self._shown.most_ranks:
            self._spread = Spread()
            for rank in self._ranks:
                self._measure(rank)
        if self._spread is None or is_last:
            looked_at = list(self._ranks)
            grown = [rank for rank in looked_at if self._has_changed(self._name(rank))]
        else:
            looked_at, grown = self._look_in_turn()
        for rank in grown:
            self._read_rank(rank)
        for node in sorted(nodes, key=int):
            if self._has_changed(name := f"node{node}.jsonl"):
                read, state = self.nodes.get(name, (0, NodeState()))
                for record in self._log(name).newest().records:
                    read = number if state.take(record) else read
                self.nodes[name] = (read, state)
        self._choose(looked_at)

    def _owners(self) -> tuple[list[str], list[str]]:
        """Return the numbers of the ranks and of the nodes that are shown and have a log."""
        owners: dict[str, list[str]] = {"rank": [], "node": []}
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    match = (_WATCHED if self._is_watched else _LOG).fullmatch(entry.name)
                    if match is not None and self._is_shown(*match.groups()):
                        owners[match[1]].append(match[2])
        except OSError as error:
            if self.folder.is_dir():  # Otherwise `RunLogs` reports it.
                self._on_notice(f"{self.folder} cannot be read ({error.strerror}): its live series are not shown")
        ranks = owners["rank"]
        return (ranks if self._shown.of_host is None else self._here(ranks)), owners["node"]

    def _is_shown(self, kind: str, number: str) -> bool:
        return self._shown.has_nodes if kind == "node" else int(number) < self._file.case.ranks

    def _here(self, ranks: list[str]) -> list[str]:
        """Return the ranks that run on the host whose ranks are shown."""
        unknown = [rank for rank in ranks if rank not in self._ranks and rank not in self._elsewhere]
        here = [rank for rank in ranks if rank in self._ranks]
        for rank in unknown[:HEADS_A_LOOK]:
            name = self._name(rank)
            host = watched_host_of(self.folder / name) if self._is_watched else host_of(self.folder / name)
            if host == self._shown.of_host:
                here.append(rank)
            elif host is not None:
                self._elsewhere.add(rank)
        return here

    def _has_changed(self, name: str) -> bool:
        """Return whether a log has changed since the last call."""
        try:
            status = os.lstat(f"{self._prefix}{name}")
        except OSError:
            return False  # It is gone; a log that cannot be read is reported when it is opened.
        change = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._changes.get(name) == change:
            return False
        self._changes[name] = change
        return True

    def _read_rank(self, rank: str) -> None:
        appended = self._log(self._name(rank)).newest()
        for record in appended.records:
            self._ranks[rank].take(record)
        if isinstance(log := self._logs.get(self._name(rank)), WatchedLog):
            if log.active_ns is not None:  # An evaluation counts as progress.
                newest = self._ranks[rank]
                newest.progress_ns = max(newest.progress_ns or 0, log.active_ns)
            self._stall_limit_s = max(self._stall_limit_s, log.stall_limit_s)
        if self._steps is not None and (appended.records or appended.is_anew):
            self._steps.take(rank, appended.steps, is_anew=appended.is_anew)
        self._measure(rank)
        self._unplaced.add(rank)

    # In a run with many ranks: which logs a look reads, and which ranks are shown.

    def _look_in_turn(self) -> tuple[list[str], list[str]]:
        """Return the ranks whose logs were looked at, and at most LOGS_A_LOOK that have changed.

        The chosen ranks come first, then the others from where the last look ended.
        """
        ranks = list(self._ranks)
        others = [rank for rank in (*ranks[self._turn :], *ranks[: self._turn]) if rank not in self._chosen]
        looked_at, changed = [], list[str]()
        for rank in (*self._chosen, *others):
            if len(changed) == LOGS_A_LOOK:
                break
            looked_at.append(rank)
            if self._has_changed(self._name(rank)):
                changed.append(rank)
        self._turn = (ranks.index(looked_at[-1]) + 1) % len(ranks)
        return looked_at, changed

    def _measure(self, rank: str) -> None:
        if self._spread is not None:
            counts = () if self._steps is None else self._steps.of_rank(rank)
            self._spread.take(rank, [*self._ranks[rank].samples(), *counts])

    def _choose(self, looked_at: Sequence[str]) -> None:
        """Choose the ranks to show: the slowest, those behind, and those that compute, wait or hold the most."""
        if self._spread is None:
            return
        reasons = {
            "computes": self._spread.of(COMPUTE_SECONDS),
            "waits": self._spread.of(PHASE_SECONDS, phase="data"),
            "holds": self._spread.of(PEAK_BYTES) or self._spread.of(RESIDENT_BYTES),
        }
        if self._steps is not None:
            done = {rank: self._steps.done(rank) for rank in looked_at}
            first = max(done.values(), default=0)
            self._behind |= {rank: first - steps for rank, steps in done.items()}
            reasons["slow"] = self._steps.means_s()
            # Ranks in step may be one apart, since their logs are not read at the same moment.
            reasons["behind"] = {rank: steps for rank, steps in self._behind.items() if steps > 1}
        self._chosen = self._choice.choose(reasons, self._ranks)

    # What is shown.

    def samples(self, places_of: PlacesOf) -> Iterator[Owned]:
        """Yield the samples of the run and its ranks; with many ranks, of the chosen ones, and statistics over all."""
        file, slot = self._file, str(self._file.slot)
        yield RUN_INFO.at(1, run=file.run, slot=slot, series=self._series, **self._labels), {}
        if moved_ns := [newest.progress_ns for newest in self._ranks.values() if newest.progress_ns is not None]:
            yield RUN_LAST_PROGRESS.at(max(moved_ns) / 1e9, run=file.run, slot=slot), {}
            if self._is_watched:
                yield RUN_STALL_LIMIT.at(self._stall_limit_s, run=file.run, slot=slot), {}
        for rank in self._ranks if self._spread is None else sorted(self._chosen, key=int):
            newest, owner = self._ranks[rank], {"rank": rank, "slot": slot}
            if newest.opened is not None:
                yield RANK_INFO.at(1, run=file.run, host=newest.opened.host), owner
            for sample in newest.samples():
                yield sample, owner
        yield from self._places(places_of)
        if self._spread is not None:
            for sample in self._spread.samples(slot, leave_out=STEPS):
                yield sample, {}

    def _places(self, places_of: PlacesOf) -> Iterator[Owned]:
        """Yield the GPUs of this node that ranks compute on.

        With many ranks, looks up only those that were on these GPUs before, or whose logs were read since.
        """
        candidates = self._ranks.keys() if self._spread is None else self._placed | self._unplaced
        self._unplaced.clear()
        for rank in sorted(candidates, key=int):
            opened, owner = self._ranks[rank].opened, {"rank": rank, "slot": str(self.slot)}
            places = () if opened is None else places_of(opened)
            (self._placed.add if places else self._placed.discard)(rank)
            for place in places:
                where = {"gpu": place.gpu, "slice": place.slice}
                yield RANK_GPU.at(1, run=self._file.run, **where), owner
                if place.memory_bytes is not None:
                    yield RANK_GPU_MEMORY.at(place.memory_bytes, **where), owner

    def ranks(self) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        """Yield host and pid of each rank that has begun, with its run and rank."""
        for rank, newest in self._ranks.items():
            if newest.opened is not None:
                yield (newest.opened.host, str(newest.opened.pid)), (self._file.run, rank)

    def counts(self) -> list[Owned]:
        """Return how many steps its ranks have done, and the histogram of their times."""
        if self._steps is None:
            return []
        if self._spread is None:
            return list(self._steps.samples(self._ranks))
        statistics = self._spread.samples(str(self.slot), of=STEPS)
        return [*self._steps.samples(self._chosen), *((sample, {}) for sample in statistics)]

    def _name(self, rank: str) -> str:
        return f"watch_rank{rank}.jsonl" if self._is_watched else f"rank{rank}.jsonl"

    def _log(self, name: str) -> LogFollower | WatchedLog:
        if name not in self._logs:
            path = self.folder / name
            is_watched = self._is_watched
            self._logs[name] = (
                WatchedLog(path, self._file.run, self._on_notice) if is_watched else LogFollower(path, self._on_notice)
            )
        return self._logs[name]


PlacesOf = Callable[[Opened], Sequence[Place]]
"""Returns the GPUs of this node, or slices of them, that a rank computes on; none if unknown."""


ENDED_S = 60.0
"""How long the counts of a run are shown after its end, so that its last steps are scraped at any usual interval."""


class RunLogs:
    """Follows the logs of all active runs in a folder; one thread at a time may read.

    ranks: which processes are ranks, as last read; each read replaces it.
    shown: what to show of the runs.
    of_all_users: also follow runs of other users.
    places_of: finds a rank's GPUs. on_notice: called once for each file that cannot be read or is gone.
    clock_ns: monotonic.
    """

    def __init__(
        self,
        runs: Path,
        *,
        on_notice: Callable[[str], None],
        shown: Shown | None = None,
        of_all_users: bool = False,
        places_of: PlacesOf = lambda opened: (),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._runs = runs
        self._folders = FollowedFolders(runs, of_all_users=of_all_users, clock_ns=clock_ns)
        self._on_notice = on_notice
        self._shown = shown or Shown()
        self._places_of = places_of
        self._followed: dict[str, _ActiveRun] = {}
        self._ended: dict[int, tuple[int, list[Owned]]] = {}  # By slot, when the run in it ended, and its counts.
        self._clock_ns = clock_ns
        self._reads = 0
        self.ranks: RanksByPid = {}

    def read(self) -> list[Owned]:
        """Return the newest samples of the shown ranks and nodes, and the counts of ended runs.

        The logs of an ended run are read to their end, and its counts are shown for ENDED_S. Each call reads from the
        disk, and hangs if the disk does.
        """
        try:
            self._follow(self._folders.running())
        except OSError as error:
            self._followed.clear()
            self._on_notice(f"{self._runs} cannot be read ({error.strerror}): no live series are shown")
        self._reads += 1
        for run in self._followed.values():
            run.read(self._reads)
        self.ranks = dict(pair for run in self._followed.values() for pair in run.ranks())
        ranks = (owned for run in self._followed.values() for owned in run.samples(self._places_of))
        counts = (owned for run in self._followed.values() for owned in run.counts())
        return [*ranks, *counts, *self._ended_counts(), *self._node_samples()]

    def _ended_counts(self) -> Iterator[Owned]:
        """Yield the counts of runs that ended recently and whose slot no other run has taken."""
        now_ns, live_slots = self._clock_ns(), {run.slot for run in self._followed.values()}
        for slot, (ended_ns, counts) in tuple(self._ended.items()):
            if slot in live_slots or now_ns - ended_ns > ENDED_S * 1e9:
                del self._ended[slot]
            else:
                yield from counts

    def _follow(self, running: Mapping[str, Path]) -> None:
        """Stop following the runs that have ended, and follow those that have begun. running: folders by name."""
        for name in self._followed.keys() - running.keys():
            run = self._followed.pop(name)
            if not run.folder.is_dir():
                self._on_notice(f"{run.folder} was deleted while its run was active: its series are no longer shown")
                continue
            run.read(self._reads, is_last=True)  # What was written since the last look: in a short run, all steps.
            self._ended[run.slot] = (self._clock_ns(), run.counts())
        for name, folder in running.items():
            if name in self._followed:
                continue
            try:
                self._followed[name] = _ActiveRun(folder, self._on_notice, self._shown)
            except Misuse as error:
                self._folders.leave_out(name)
                self._on_notice(f"a run is not shown: {error}")

    def _node_samples(self) -> list[Owned]:
        """Return each node's last samples, from whichever run: a series that is missing there is gone."""
        newest: dict[str, tuple[tuple[int, int], NodeState]] = {}
        for name, (read, state) in (item for run in self._followed.values() for item in run.nodes.items()):
            # Ordered by the time of reading, since the node's clock may jump; if equal, by its clock.
            when = (read, state.time_ns or 0)
            if name not in newest or when > newest[name][0]:
                newest[name] = (when, state)
        return [
            (sample, {})
            for _, state in newest.values()
            for sample in with_ranks(state.samples, self.ranks, host=state.host)
        ]
