"""The parts of a trial: whose progress counts, who is blamed for a lost agent, and how long the others may go on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

import pytest

from bench.engines.trial_parts import Parts, ReadyNode
from bench.errors import InfrastructureFailed
from bench.rank.messages import Ready, TrialEnded, TrialOrder, TrialProgress
from tests.bench.made.examples import make_machine, small_case

RUN = "20261123-010203-ddp-abc123"
WITHIN_S = 60.0
Report = Callable[[TrialProgress], None]
Part = Callable[[Report, threading.Event], TrialEnded]
"""What a node does: it may report progress, and wait until it is told to end."""


class FakeLink:
    """A link to an agent that does its part as told. `tests/bench/engines/test_cluster.py` has real ones."""

    silent_s = WITHIN_S

    def __init__(self, part: Part) -> None:
        self._part = part
        self._answers: queue.SimpleQueue[TrialProgress | TrialEnded | InfrastructureFailed] = queue.SimpleQueue()
        self.told_to_end = threading.Event()

    def begin(self, _order: TrialOrder, on_answer: Callable[[], object]) -> None:
        """Begin the part, in a thread of its own."""

        def put(answer: TrialProgress | TrialEnded | InfrastructureFailed) -> None:
            self._answers.put(answer)
            on_answer()

        def do() -> None:
            try:
                put(self._part(put, self.told_to_end))
            except InfrastructureFailed as error:
                put(error)

        threading.Thread(target=do, daemon=True).start()

    @property
    def has_answer(self) -> bool:
        """Whether `answer` returns at once."""
        return not self._answers.empty()

    def answer(self, within_s: float) -> TrialProgress | TrialEnded:
        """Return the next answer, or raise."""
        answer = self._answers.get(timeout=within_s)
        if isinstance(answer, InfrastructureFailed):
            raise answer
        return answer

    def end_trial(self, _run: str, _trial: int) -> None:
        """Take note."""
        self.told_to_end.set()


def _ended(outcome: str = "done") -> TrialEnded:
    return TrialEnded(run=RUN, trial=0, outcome=outcome)  # type: ignore[arg-type]


def _parts(parts: Sequence[Part]) -> tuple[Parts, list[FakeLink]]:
    links = [FakeLink(part) for part in parts]
    ready = Ready(machine=make_machine())
    nodes = [
        ReadyNode(number=number, name=f"node {number}", link=link, ready=ready)  # type: ignore[arg-type]
        for number, link in enumerate(links)
    ]
    case = small_case(ranks=len(parts), nodes=len(parts))
    order = TrialOrder(run=RUN, trial=0, case=case, limit_s=WITHIN_S)
    return Parts(nodes, [order] * len(parts)), links


def _progress(steps: int) -> TrialProgress:
    return TrialProgress(run=RUN, trial=0, steps=steps)


def test_the_progress_of_a_trial_is_that_of_its_slowest_node() -> None:
    has_run_ahead = threading.Event()

    def fast(report: Report, _told: threading.Event) -> TrialEnded:
        report(_progress(50))
        has_run_ahead.set()
        return _ended()

    def slow(report: Report, _told: threading.Event) -> TrialEnded:
        assert has_run_ahead.wait(WITHIN_S)
        report(_progress(1))
        report(_progress(2))
        return _ended()

    parts, _ = _parts([fast, slow])
    seen: list[int] = []
    parts.run(lambda progress: seen.append(progress.steps))
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_of_several_lost_agents_the_one_that_was_lost_first_is_named(first: int) -> None:
    """Who is lost after it may have been lost by it: the others are told to end."""

    def lost(number: int) -> Part:
        def part(_report: Report, told: threading.Event) -> TrialEnded:
            if number != first:
                assert told.wait(WITHIN_S)
            raise InfrastructureFailed(f"the agent of node {number} is gone")

        return part

    parts, _ = _parts([lost(number) for number in range(3)])
    with pytest.raises(InfrastructureFailed, match=f"the agent of node {first} is gone"):
        parts.run(lambda _: None)


def test_each_part_that_fails_leaves_the_others_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty nodes fail one after another, each well within the time that the others have after the first."""
    monkeypatch.setattr("bench.engines.trial_parts.PEERS_S", 0.3)

    def hangs(_report: Report, told: threading.Event) -> TrialEnded:
        assert told.wait(WITHIN_S)
        return _ended("failed")

    def fails(number: int) -> Part:
        def part(_report: Report, told: threading.Event) -> TrialEnded:
            told.wait(0.1 * number)
            return _ended("failed")

        return part

    parts, links = _parts([hangs, *(fails(number) for number in range(60))])
    parts.run(lambda _: None)
    assert links[0].told_to_end.is_set()
    assert links[-1].told_to_end.is_set()  # It would have failed by itself after 6 s.
