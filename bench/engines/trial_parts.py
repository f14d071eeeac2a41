"""The parts of a trial on their nodes: which node has which ranks, how the parts run, and how the trial ended."""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from bench.engines.agent_link import AgentLink
from bench.engines.root_cause import joint_cause
from bench.errors import InfrastructureFailed
from bench.rank.messages import FailureCause, Ready, TrialEnded, TrialOrder, TrialOutcome, TrialProgress

PEERS_S = 5.0
"""How long other nodes may take to end a trial that failed on one node: on gloo 1.5 s, on NCCL they never do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyNode:
    """A node whose agent is ready."""

    number: int
    name: str
    link: AgentLink
    ready: Ready


def spread(ranks: int, nodes: int) -> list[range]:
    """Return the ranks of each node: evenly, and in their order, so that neighbours in number share a node.

    Example: 5 ranks over 2 nodes are [0, 1, 2] and [3, 4].
    """
    firsts = [-(-ranks * node // nodes) for node in range(nodes + 1)]
    return [range(first, end) for first, end in itertools.pairwise(firsts)]


class Parts:
    """The parts of a trial on their nodes, each in a thread; the caller's thread receives their reports."""

    def __init__(self, nodes: Sequence[ReadyNode], orders: Sequence[TrialOrder]) -> None:
        self._nodes, self._orders = nodes, orders
        self._events: queue.SimpleQueue[tuple[int, TrialProgress | TrialEnded | InfrastructureFailed]] = (
            queue.SimpleQueue()
        )

    def run(self, progress: Callable[[TrialProgress], None]) -> dict[int, TrialEnded]:
        """Run all parts; return how each ended, by its position among the nodes.

        Raises:
            InfrastructureFailed: an agent is gone; the other parts have ended.
        """
        threads = [threading.Thread(target=self._run_part, args=(place,)) for place in range(len(self._nodes))]
        for thread in threads:
            thread.start()
        try:
            return self._wait(progress)
        except BaseException:
            self._end(set())
            raise
        finally:
            for thread in threads:
                thread.join()

    def _run_part(self, place: int) -> None:
        try:
            ended = self._nodes[place].link.run(
                self._orders[place], lambda progress: self._events.put((place, progress))
            )
        except InfrastructureFailed as error:
            self._events.put((place, error))
        else:
            self._events.put((place, ended))

    def _wait(self, progress: Callable[[TrialProgress], None]) -> dict[int, TrialEnded]:
        steps = dict.fromkeys(range(len(self._nodes)), 0)
        reported = -1
        ended: dict[int, TrialEnded] = {}
        lost: dict[int, InfrastructureFailed] = {}
        deadline_s = math.inf  # When the remaining parts are ended.
        while len(ended) + len(lost) < len(self._nodes):
            left_s = None if deadline_s == math.inf else max(0.0, deadline_s - time.monotonic())
            try:
                place, event = self._events.get(timeout=left_s)
            except queue.Empty:
                self._end({*ended, *lost})
                deadline_s = math.inf
                continue
            match event:
                case TrialProgress():
                    steps[place] = event.steps
                    if min(steps.values()) != reported:
                        reported = min(steps.values())
                        progress(msgspec.structs.replace(event, steps=reported))
                case TrialEnded():
                    ended[place] = event
                    if event.outcome != "done":
                        deadline_s = min(deadline_s, time.monotonic() + PEERS_S)
                case InfrastructureFailed():
                    lost[place] = event
                    deadline_s = time.monotonic()
        if lost:
            raise next(iter(lost.values()))  # The first: whoever is lost later may be lost by it.
        return ended

    def _end(self, ended: set[int]) -> None:
        for place, (node, order) in enumerate(zip(self._nodes, self._orders, strict=True)):
            if place not in ended:
                with suppress(InfrastructureFailed):
                    node.link.end_trial(order.run, order.trial)


def joined(order: TrialOrder, parts: Mapping[int, TrialEnded], folder: str) -> TrialEnded:
    """Return how a trial ended, from the ends of its parts."""
    ended = [parts[place] for place in sorted(parts)]
    if len(ended) == 1 and not ended[0].ends:
        return ended[0]
    if (cause := joint_cause(ended, folder, order.limit_s)) is None:
        return TrialEnded(run=order.run, trial=order.trial, outcome="done")
    worst: tuple[TrialOutcome, ...] = ("failed", "timed_out", "interrupted")
    outcome = next(candidate for candidate in worst if candidate in {end.outcome for end in ended})
    if outcome == "interrupted":
        cause = FailureCause(kind="interrupted", rank=None, step=None, text="the user or a signal ended it")
    return TrialEnded(run=order.run, trial=order.trial, outcome=outcome, cause=cause)
