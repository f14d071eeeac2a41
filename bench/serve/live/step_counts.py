"""Counts the steps in the logs of a run: how many each rank has done, and the histogram of their times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from collectors.metrics.metric import Sample
from collectors.metrics.run_counts import STEP_DURATION, STEPS
from collectors.prometheus.exposition import Exemplar, Observations, Owned, histogram_of
from collectors.sample_log import LoggedStep, Mark

LONGEST_EXEMPLAR = 128
"""Most characters of an exemplar's labels, names and values together. Source: OpenMetrics 1.0."""

_MARKS: tuple[Mark, ...] = ("warm_up", "measured")


@dataclass(slots=True)
class _RankSteps:
    """The steps of a rank. newest: the last step in each bucket."""

    counts: dict[Mark, int] = field(default_factory=lambda: dict.fromkeys(_MARKS, 0))
    times: Observations = field(default_factory=Observations)
    newest: dict[int, LoggedStep] = field(default_factory=dict)


class StepCounts:
    """Counts the steps of a run's ranks. on_notice: called if a step's time or a run's name cannot be shown."""

    def __init__(self, *, run: str, slot: int, on_notice: Callable[[str], None]) -> None:
        self._run, self._slot = run, str(slot)
        self._ranks: dict[str, _RankSteps] = {}
        self._on_notice = on_notice

    def take(self, rank: str, steps: Sequence[LoggedStep], *, is_anew: bool) -> None:
        """Count steps of a rank, which is shown from the first call on. is_anew: forget earlier counts."""
        if is_anew or rank not in self._ranks:
            self._ranks[rank] = _RankSteps()
        counted = self._ranks[rank]
        for step in steps:
            counted.counts[step.mark] += 1
            if step.mark == "measured" and step.step_s is not None:
                try:
                    counted.newest[counted.times.observe(step.step_s)] = step
                except ValueError as error:
                    self._on_notice(f"run {self._run}: step {step.step} of rank {rank} is in no histogram: {error}")

    def done(self, rank: str) -> int:
        """Return how many steps a rank has done."""
        return sum(self._ranks[rank].counts.values()) if rank in self._ranks else 0

    def means_s(self) -> dict[str, float]:
        """Return the mean measured step of each rank that has steps."""
        return {
            rank: steps.times.total / done for rank, steps in self._ranks.items() if (done := steps.counts["measured"])
        }

    def of_rank(self, rank: str) -> Iterator[Sample]:
        """Yield a rank's counts."""
        if rank in self._ranks:
            for mark, number in self._ranks[rank].counts.items():
                yield STEPS.at(number, mark=mark)

    def samples(self, ranks: Collection[str]) -> Iterator[Owned]:
        """Yield the histogram of the run, and the counts of these ranks; nothing before the first rank's first call."""
        if self._ranks:
            times = (counts.times for counts in self._ranks.values())
            yield histogram_of(STEP_DURATION, times, exemplars=self._exemplars(), slot=self._slot), {}
        for rank in self._ranks:
            if rank in ranks:
                for sample in self.of_rank(rank):
                    yield sample, {"rank": rank, "slot": self._slot}

    def _exemplars(self) -> dict[int, Exemplar]:
        """Return the newest step of any rank in each bucket; nothing if the run's name is too long."""
        exemplars: dict[int, Exemplar] = {}
        for rank, counted in self._ranks.items():
            for bucket, step in counted.newest.items():
                if bucket in exemplars and step.time_ns <= exemplars[bucket].time_ns:
                    continue
                assert step.step_s is not None, "only a step that was timed is in a bucket"
                labels = {"run": self._run, "trial": str(step.trial), "rank": rank, "step": str(step.step)}
                if sum(len(name) + len(value) for name, value in labels.items()) > LONGEST_EXEMPLAR:
                    self._on_notice(f"run {self._run}: its name is too long for exemplars; its histogram has none")
                    return {}
                exemplars[bucket] = Exemplar(labels=labels, value=step.step_s, time_ns=step.time_ns)
        return exemplars
