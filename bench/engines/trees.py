"""Engines of several source trees at once: one placement starts an agent for each tree on each node."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.engines.agent_link import StartLimit
from bench.engines.cluster import AgentPlacement, ClusterEngine, Meeting
from bench.engines.wire.frames import new_key
from bench.engines.wire.trees import RankTree


def engines_of_trees(
    placement: AgentPlacement,
    runs: Path,
    trees: Sequence[RankTree],
    *,
    dropped: Collection[str] = (),
    start_limit: StartLimit,
) -> tuple[ClusterEngine, ...]:
    """Return an engine for each tree, in their order, all on the nodes of the placement.

    Raises:
        InfrastructureFailed: the placement cannot start agents, or one does not connect.
    """
    shared, key = _SharedPlacement(placement, len(trees)), new_key()
    with ExitStack() as stack:
        engines = tuple(
            stack.enter_context(
                ClusterEngine(_Share(shared), runs, tree=tree, key=key, dropped=dropped, start_limit=start_limit)
            )
            for tree in trees
        )
        for engine in engines:
            engine.meet_agents()
        stack.pop_all()
        return engines


class _SharedPlacement:
    """A placement of several engines: it starts when all of them listen, and stops with the last one."""

    def __init__(self, placement: AgentPlacement, engines: int) -> None:
        self.placement = placement
        self._engines = engines
        self._meetings: list[Meeting] = []
        self._stopped = 0

    @property
    def is_started(self) -> bool:
        """Whether all engines listen, so that the agents have been started."""
        return len(self._meetings) == self._engines

    def start(self, meeting: Meeting) -> None:
        self._meetings.append(meeting)
        if self.is_started:
            first, *others = self._meetings
            trees = (*first.trees, *(tree for other in others for tree in other.trees))
            self.placement.start(replace(first, trees=trees))

    def stop(self) -> None:
        self._stopped += 1
        if self._stopped == len(self._meetings):
            self.placement.stop()


class _Share:
    """The part of one engine in a shared placement, itself an `AgentPlacement`."""

    def __init__(self, shared: _SharedPlacement) -> None:
        self._shared = shared
        self.name, self.nodes, self.address = (
            shared.placement.name,
            shared.placement.nodes,
            shared.placement.address,
        )

    def start(self, meeting: Meeting) -> None:
        self._shared.start(meeting)

    def failure(self) -> str | None:
        return self._shared.placement.failure() if self._shared.is_started else None

    def left_s(self) -> float:
        return self._shared.placement.left_s()

    def stop(self) -> None:
        self._shared.stop()
