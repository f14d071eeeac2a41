"""Live samples of the runs in progress: the newest of each log, with the labels of its owner, and counts of its steps.

`RunLogs` reads the logs of a folder; `LiveRuns` of `looks` does so in a thread of its own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bench.errors import Misuse
from bench.serve.gpu_placement import Place, RanksByPid, with_ranks
from bench.serve.info_labels import case_labels, membership
from bench.serve.live.rank_log import LiveRank, LogFollower
from bench.serve.live.step_counts import StepCounts
from bench.store.active_runs import FollowedFolders
from bench.store.run_dir import case_file, machine_of
from bench.store.summary import series_of
from collectors.metrics.agent import RANK_INFO, RUN_INFO, RUN_LAST_PROGRESS
from collectors.metrics.gpu import RANK_GPU, RANK_GPU_MEMORY
from collectors.prometheus.exposition import Owned
from collectors.sample_log import NodeState, Opened
from workloads.registry import SPECS

_LOG = re.compile(r"(rank|node)(0|[1-9][0-9]*)\.jsonl", re.ASCII)
_PROBES = frozenset(spec.name for spec in SPECS if spec.kind == "probe")


class _ActiveRun:
    """One run in progress, and the logs in its folder.

    nodes: by the name of a node's log, the number of the read at which it said something last, and its state then.

    Raises:
        Misuse: its case or machine cannot be read.
    """

    def __init__(self, folder: Path, on_notice: Callable[[str], None], *, has_nodes: bool) -> None:
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
            "commit": machine.commit or "",
        }
        self._ranks: dict[str, LiveRank] = {}  # In order; of a node, those that have a log there.
        self._logs: dict[str, LogFollower] = {}
        self._changes: dict[str, tuple[int, int, int]] = {}  # By name: what each log was when it was read last.
        self._steps: StepCounts | None = None
        if self._file.case.strategy not in _PROBES:
            self._steps = StepCounts(run=self._file.run, slot=self.slot, on_notice=on_notice)
        self._on_notice = on_notice
        self._has_nodes = has_nodes

    def read(self, number: int) -> None:
        """Take what was appended to the logs since the last read; `number` counts reads."""
        for kind, owner, name in self._changed_logs():
            appended = self._log(self.folder / name).newest()
            if kind == "rank":
                for record in appended.records:
                    self._ranks[owner].take(record)
                if self._steps is not None and (appended.records or appended.is_anew):
                    self._steps.take(owner, appended.steps, is_anew=appended.is_anew)
                continue
            read, state = self.nodes.get(name, (0, NodeState()))
            for record in appended.records:
                read = number if state.take(record) else read
            self.nodes[name] = (read, state)

    def _changed_logs(self) -> list[tuple[str, str, str]]:
        """Return kind ("rank" or "node"), number and name of each log that has changed since the last read, in order.

        Of 4,096 ranks, a node has a few, and between two looks few logs of other nodes arrive: only these are opened.
        """
        changed = []
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    match = _LOG.fullmatch(entry.name)
                    if match is None or not self._is_shown(*match.groups()):
                        continue
                    status = entry.stat(follow_symlinks=False)
                    change = (status.st_ino, status.st_size, status.st_mtime_ns)
                    if self._changes.get(entry.name) != change:
                        self._changes[entry.name] = change
                        changed.append((match[1], match[2], entry.name))
        except OSError as error:
            if self.folder.is_dir():  # Otherwise `RunLogs` tells it of the run.
                self._on_notice(f"{self.folder} cannot be read ({error.strerror}): its live series are not shown")
        if new := {owner for kind, owner, _ in changed if kind == "rank"} - self._ranks.keys():
            ranks = self._ranks | {rank: LiveRank() for rank in new}
            self._ranks = {rank: ranks[rank] for rank in sorted(ranks, key=int)}
        return sorted(changed, key=lambda log: (log[0] != "rank", int(log[1])))

    def _is_shown(self, kind: str, number: str) -> bool:
        return self._has_nodes if kind == "node" else int(number) < self._file.case.ranks

    def samples(self, places_of: PlacesOf) -> Iterator[Owned]:
        """Yield the run's own series, and its ranks'."""
        file, slot = self._file, str(self._file.slot)
        yield RUN_INFO.at(1, run=file.run, slot=slot, series=self._series, **self._labels), {}
        if moved_ns := [newest.progress_ns for newest in self._ranks.values() if newest.progress_ns is not None]:
            yield RUN_LAST_PROGRESS.at(max(moved_ns) / 1e9, run=file.run, slot=slot), {}
        for rank, newest in self._ranks.items():
            owner = {"rank": rank, "slot": slot}
            if newest.opened is not None:
                yield RANK_INFO.at(1, run=file.run, host=newest.opened.host), owner
                for place in places_of(newest.opened):
                    where = {"gpu": place.gpu, "slice": place.slice}
                    yield RANK_GPU.at(1, run=file.run, **where), owner
                    if place.memory_bytes is not None:
                        yield RANK_GPU_MEMORY.at(place.memory_bytes, **where), owner
            for sample in newest.samples():
                yield sample, owner

    def ranks(self) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        """Yield host and pid of each rank that has begun, and its run and rank."""
        for rank, newest in self._ranks.items():
            if newest.opened is not None:
                yield (newest.opened.host, str(newest.opened.pid)), (self._file.run, rank)

    def counts(self) -> list[Owned]:
        """Return how many steps its ranks have done, and the histogram of their times."""
        return [] if self._steps is None else list(self._steps.samples())

    def _log(self, path: Path) -> LogFollower:
        if path.name not in self._logs:
            self._logs[path.name] = LogFollower(path, self._on_notice)
        return self._logs[path.name]


PlacesOf = Callable[[Opened], Sequence[Place]]
"""Returns the GPUs of this node, or slices of them, that a rank computes on; none where unknown."""


ENDED_S = 60.0
"""How long the counts of a run are shown after its end: its last steps are scraped, too, at any usual interval."""


class RunLogs:
    """Follows the logs of all runs in progress in a folder; one thread at a time may read.

    ranks: which processes are ranks, as last read; replaced by each reading.
    has_nodes: also show what the logs say of the runs' nodes; False where this node is watched directly.
    of_all_users: also follow runs of other users.
    places_of: finds a rank's GPUs. on_notice: is told, once each, what cannot be read or is gone. clock_ns: monotonic.
    """

    def __init__(
        self,
        runs: Path,
        *,
        on_notice: Callable[[str], None],
        has_nodes: bool = True,
        of_all_users: bool = False,
        places_of: PlacesOf = lambda opened: (),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._runs = runs
        self._folders = FollowedFolders(runs, of_all_users=of_all_users, clock_ns=clock_ns)
        self._on_notice = on_notice
        self._has_nodes = has_nodes
        self._places_of = places_of
        self._followed: dict[str, _ActiveRun] = {}
        self._ended: dict[int, tuple[int, list[Owned]]] = {}  # By slot, when the run in it ended, and its counts.
        self._clock_ns = clock_ns
        self._reads = 0
        self.ranks: RanksByPid = {}

    def read(self) -> list[Owned]:
        """Return the newest samples of every rank and, with has_nodes, every node; of a run that has ended its counts.

        The logs of an ended run are read to their end, and its counts shown as ENDED_S says.

        Each call reads from the disk, and hangs with it.
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
        """Yield the counts of runs that ended lately and whose slot no other run has taken."""
        now_ns, live_slots = self._clock_ns(), {run.slot for run in self._followed.values()}
        for slot, (ended_ns, counts) in tuple(self._ended.items()):
            if slot in live_slots or now_ns - ended_ns > ENDED_S * 1e9:
                del self._ended[slot]
            else:
                yield from counts

    def _follow(self, running: Mapping[str, Path]) -> None:
        """Let go of the runs that have ended, and take up those that have begun. running: folders by name."""
        for name in self._followed.keys() - running.keys():
            run = self._followed.pop(name)
            if not run.folder.is_dir():
                self._on_notice(f"{run.folder} was deleted while its run was active: its series are no longer shown")
                continue
            run.read(self._reads)  # What was written since the last look, which is all of a short run's steps.
            self._ended[run.slot] = (self._clock_ns(), run.counts())
        for name, folder in running.items():
            if name in self._followed:
                continue
            try:
                self._followed[name] = _ActiveRun(folder, self._on_notice, has_nodes=self._has_nodes)
            except Misuse as error:
                self._folders.leave_out(name)
                self._on_notice(f"a run is not shown: {error}")

    def _node_samples(self) -> list[Owned]:
        """Return what each node's collectors said last, in whichever run: a series that is missing there is gone."""
        newest: dict[str, tuple[tuple[int, int], NodeState]] = {}
        for name, (read, state) in (item for run in self._followed.values() for item in run.nodes.items()):
            # Ordered by when we read it, since the node's clock may jump; by its clock where that is the same.
            when = (read, state.time_ns or 0)
            if name not in newest or when > newest[name][0]:
                newest[name] = (when, state)
        return [
            (sample, {})
            for _, state in newest.values()
            for sample in with_ranks(state.samples, self.ranks, host=state.host)
        ]
