"""What the logs of the runs that go on now say last: the live samples, each with the labels of its owner."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bench.case import Case
from bench.errors import Misuse
from bench.live_logs import LiveRank, LogFollower
from bench.placement import Place
from bench.run import CaseFile, case_file, machine_of
from bench.run_folders import FollowedFolders
from bench.series import series_of
from collectors.catalogue.info import RANK_INFO, RUN_INFO
from collectors.catalogue.placement import RANK_GPU, RANK_GPU_MEMORY
from collectors.exporter import Owned
from collectors.metric import Sample
from collectors.node_log import NodeState
from collectors.sample_log import Opened

PlacesOf = Callable[[Opened], Sequence[Place]]
"""The GPUs of this node, or slices of them, that a rank computes on; none where they are not known."""


class LiveRuns:
    """Follows the logs of all runs of a folder that somebody works on; to be asked by one thread at a time.

    It reads from the disk whenever it is asked, and hangs with it.
    has_nodes: shows what the runs' logs say of their nodes, too; not where somebody else watches the node.
    places_of: finds a rank's GPUs. on_notice: is told, once each, what cannot be read or is gone. clock_ns: never set
    back.
    """

    def __init__(
        self,
        runs: Path,
        *,
        on_notice: Callable[[str], None],
        has_nodes: bool = True,
        places_of: PlacesOf = lambda opened: (),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._runs = runs
        self._folders = FollowedFolders(runs, clock_ns=clock_ns)
        self._on_notice = on_notice
        self._has_nodes = has_nodes
        self._places_of = places_of
        self._followed: dict[str, _Run] = {}
        self._looks = 0

    def samples(self) -> list[Owned]:
        """The newest samples of every rank, and of every node where asked for; of a run that has ended none."""
        self._look()
        ranks = (owned for run in self._followed.values() for owned in run.samples(self._places_of))
        return [*ranks, *self._node_samples()]

    def _look(self) -> None:
        self._look_for_runs()
        self._looks += 1
        for run in self._followed.values():
            run.look(self._looks)

    def _look_for_runs(self) -> None:
        try:
            self._take_up(self._folders.running())
        except OSError as error:
            self._followed.clear()
            self._on_notice(f"{self._runs} cannot be read ({error.strerror}): no live series are shown")

    def _take_up(self, running: Mapping[str, Path]) -> None:
        for name in self._followed.keys() - running.keys():
            run = self._followed.pop(name)
            if not run.folder.is_dir():
                self._on_notice(f"{run.folder} was deleted while its run went on: its series are no longer shown")
        for name, folder in running.items():
            if name not in self._followed:
                try:
                    hardware = machine_of(folder).hardware(case_file(folder).case.device)
                    self._followed[name] = _Run(
                        folder, case_file(folder), hardware, self._on_notice, has_nodes=self._has_nodes
                    )
                except Misuse as error:
                    self._folders.leave_out(name)
                    self._on_notice(f"a run is not shown: {error}")

    def _node_samples(self) -> list[Owned]:
        """What each node's collectors said last, in whichever run: a series that is missing there is gone."""
        newest: dict[str, tuple[tuple[int, int], NodeState]] = {}
        for name, (look, state) in (item for run in self._followed.values() for item in run.nodes().items()):
            # By when we read it, since the node's clock may jump; by its clock where that is the same.
            when = (look, state.time_ns or 0)
            if name not in newest or when > newest[name][0]:
                newest[name] = (when, state)
        return [(sample, {}) for _, state in newest.values() for sample in state.samples]


class _Run:
    """One run that goes on, and the logs in its folder."""

    def __init__(
        self, folder: Path, file: CaseFile, hardware: str, on_notice: Callable[[str], None], *, has_nodes: bool
    ) -> None:
        self.folder = folder
        self._file = file
        self._hardware = hardware
        self._ranks = {str(rank): LiveRank() for rank in range(file.case.ranks)}
        self._nodes: dict[str, tuple[int, NodeState]] = {}
        self._logs: dict[str, LogFollower] = {}
        self._on_notice = on_notice
        self._has_nodes = has_nodes

    def look(self, number: int) -> None:
        """Take what was appended to the logs since the last look."""
        for rank, newest in self._ranks.items():
            for record in self._log(self.folder / f"rank{rank}.jsonl").newest():
                newest.take(record)
        for path in self.folder.glob("node*.jsonl") if self._has_nodes else ():
            look, state = self._nodes.get(path.name, (0, NodeState()))
            for record in self._log(path).newest():
                look = number if state.take(record) else look
            self._nodes[path.name] = (look, state)

    def samples(self, places_of: PlacesOf) -> Iterator[Owned]:
        """The run's own series, and its ranks'."""
        slot = str(self._file.slot)
        yield _run_info(self._file.run, slot, self._file.case, self._hardware), {}
        for rank, newest in self._ranks.items():
            owner = {"rank": rank, "slot": slot}
            if newest.opened is not None:
                yield RANK_INFO.at(1, run=self._file.run, host=newest.opened.host), owner
                for place in places_of(newest.opened):
                    where = {"gpu": place.gpu, "slice": place.slice}
                    yield RANK_GPU.at(1, run=self._file.run, **where), owner
                    if place.memory_bytes is not None:
                        yield RANK_GPU_MEMORY.at(place.memory_bytes, **where), owner
            for sample in newest.samples():
                yield sample, owner

    def nodes(self) -> Mapping[str, tuple[int, NodeState]]:
        """What each of its nodes said last, and at which look, by the name of the node's log."""
        return self._nodes

    def _log(self, path: Path) -> LogFollower:
        if path.name not in self._logs:
            self._logs[path.name] = LogFollower(path, self._on_notice)
        return self._logs[path.name]


def _run_info(run: str, slot: str, case: Case, hardware: str) -> Sample:
    return RUN_INFO.at(
        1, run=run, slot=slot, strategy=case.strategy, ranks=str(case.ranks), series=series_of(case, hardware)
    )
