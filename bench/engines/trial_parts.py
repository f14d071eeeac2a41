"""The parts of a trial on their nodes: which node has which ranks, how the parts run, and how the trial ended."""

from __future__ import annotations

import itertools
import math
import queue
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from bench.engines.agent_link import AgentLink
from bench.engines.root_cause import joint_cause
from bench.errors import InfrastructureFailed
from bench.rank.messages import FailureCause, Ready, TrialEnded, TrialOrder, TrialOutcome, TrialProgress

PEERS_S = 5.0
"""How long other nodes may take to end a trial that failed on one node: gloo takes 1.5 s, NCCL never ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyNode:
    """A node whose agent is ready."""

    number: int
    name: str
    link: AgentLink
    ready: Ready


def spread(ranks: int, nodes: int) -> list[range]:
    """Return the ranks of each node, spread evenly and in order, so that consecutive ranks share a node.

    Example: 5 ranks over 2 nodes are [0, 1, 2] and [3, 4].
    """
    firsts = [-(-ranks * node // nodes) for node in range(nodes + 1)]
    return [range(first, end) for first, end in itertools.pairwise(firsts)]


class Parts:
    """The parts of a trial on their nodes, whose reports the caller's thread receives."""

    def __init__(self, nodes: Sequence[ReadyNode], orders: Sequence[TrialOrder]) -> None:
        self._nodes, self._orders = nodes, orders
        self._places: queue.SimpleQueue[int] = queue.SimpleQueue()  # Of nodes whose agents may have answered.
        self._running = set(range(len(nodes)))
        self._steps = [0] * len(nodes)
        self._nodes_at = Counter(self._steps)  # The number of nodes, by the steps they have finished.
        self._reported = -1
        self._ended: dict[int, TrialEnded] = {}
        self._lost: dict[int, InfrastructureFailed] = {}

    def run(self, progress: Callable[[TrialProgress], None]) -> dict[int, TrialEnded]:
        """Run all parts; return how each ended, by its position among the nodes.

        Raises:
            InfrastructureFailed: an agent is gone; the other parts have ended.
        """
        for place, (node, order) in enumerate(zip(self._nodes, self._orders, strict=True)):
            node.link.begin(order, partial(self._places.put, place))
        try:
            self._wait(progress)
        except BaseException:
            self._end()
            self._wait(lambda _: None)
            raise
        if self._lost:
            raise next(iter(self._lost.values()))  # The first: a later loss may be its consequence.
        return self._ended

    def _wait(self, progress: Callable[[TrialProgress], None]) -> None:
        """Receive reports until all parts have ended or are lost."""
        for place in self._running:
            self._places.put(place)  # Its agent may be gone, or an interrupted wait may have consumed its report.
        silent_s = max(node.link.silent_s for node in self._nodes)
        limit_s = time.monotonic() + max(order.limit_s for order in self._orders) + silent_s
        end_s = math.inf  # When to end the remaining parts.
        while self._running:
            try:
                place = self._places.get(timeout=max(0.0, min(end_s, limit_s) - time.monotonic()))
            except queue.Empty:
                if time.monotonic() >= limit_s:
                    for late in tuple(self._running):
                        self._take(late, progress)
                elif time.monotonic() >= end_s:
                    self._end()
                    end_s = math.inf
                continue
            while place in self._running and self._nodes[place].link.has_answer:
                self._take(place, progress)
                if place in self._lost:
                    end_s = time.monotonic()
                elif place in self._ended and self._ended[place].outcome != "done":
                    end_s = min(end_s, time.monotonic() + PEERS_S)

    def _take(self, place: int, progress: Callable[[TrialProgress], None]) -> None:
        """Take an agent's next answer; an agent that has none by now is lost."""
        try:
            answer = self._nodes[place].link.answer(0.0)
        except InfrastructureFailed as error:
            self._lost[place] = error
            self._running.remove(place)
            return
        match answer:
            case TrialProgress():
                self._nodes_at[self._steps[place]] -= 1
                self._nodes_at += Counter((answer.steps,))  # Keeps only counts above 0.
                self._steps[place] = answer.steps
                if (slowest := min(self._nodes_at)) != self._reported:
                    self._reported = slowest
                    progress(msgspec.structs.replace(answer, steps=slowest))
            case TrialEnded():
                self._ended[place] = answer
                self._running.remove(place)

    def _end(self) -> None:
        for place in self._running:
            self._nodes[place].link.end_trial(self._orders[place].run, self._orders[place].trial)


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
