"""An engine without processes: it writes the logs that ranks of known speed would have written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import get_args

from bench.machine.machine import Machine
from bench.rank.messages import FailureCause, TrialEnded, TrialOrder, TrialProgress
from collectors.metrics.metric import Sample
from collectors.metrics.rank import (
    LIVE_TENSOR_BYTES,
    LOSS,
    OBSERVER_SECONDS,
    PAYLOAD_BYTES,
    PHASE_SECONDS,
    RESIDENT_BYTES,
    STAGE_ACTIVATION_BYTES,
    STEP_SECONDS,
)
from collectors.sample_log import Ended, Opened, Reading, SampleLog, TimedAction, TimedActions
from collectors.traces.breakdown import Breakdown
from workloads.cost_models.schedules import ActionKind, Pipeline, actions
from workloads.pipeline_parallel.simulator import simulate


class FakeEngine:
    """Ranks whose measured steps last as long as it is told.

    steps_s: by strategy, trial and rank, the seconds of each measured step; the warm-up before takes a hundred each.
    runs: where the folders of runs are.
    breaks: what a run of this strategy and trial ends with, in place of a result; an exception is raised.
    """

    name = "fake"

    def __init__(
        self,
        machine: Machine,
        steps_s: Mapping[str, Sequence[Sequence[Sequence[float]]]],
        breaks: Mapping[tuple[str, int], FailureCause | BaseException] | None = None,
        *,
        runs: Path | None = None,
    ) -> None:
        self.runs = runs
        self.orders: list[tuple[str, int]] = []
        self.is_stopped = False
        self._machine = machine
        self._steps_s = steps_s
        self._breaks = breaks or {}

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Nothing is left to end."""
        self.is_stopped = True

    def machine(self) -> Machine:
        """The machine that it was given."""
        return self._machine

    def folder(self, order: TrialOrder) -> Path:
        """The folder of the order's run."""
        assert self.runs is not None, "the engine is opened with the folder of runs"
        return self.runs / order.run

    def collect(self, run: str) -> tuple[str, ...]:
        """Nothing is elsewhere."""
        return ()

    def run(self, order: TrialOrder, progress: Callable[[TrialProgress], None]) -> TrialEnded:
        """Write each rank's log."""
        self.orders.append((order.case.strategy, order.trial))
        broken = self._breaks.get((order.case.strategy, order.trial))
        if isinstance(broken, BaseException):
            raise broken
        for rank, steps_s in enumerate(self._steps_s[order.case.strategy][order.trial]):
            _write(self.folder(order), order, rank, steps_s, is_good=broken is None)
        progress(TrialProgress(run=order.run, trial=order.trial, steps=order.case.steps))
        outcome = "done" if broken is None else "interrupted" if broken.kind == "interrupted" else "failed"
        return TrialEnded(run=order.run, trial=order.trial, outcome=outcome, cause=broken)  # type: ignore[arg-type]


def _traced(rank: int, trial: int) -> list[Sample]:
    """A step of 10 s: 6 of computation, 4 of communication, 1 (rank 0) or 3 (rank 1) of both, in trial 1.

    Each trial before or after it has a hundredth less or more.
    """
    overlap_ns = int(1e9) * (1 + 2 * rank) + int(1e7) * (trial - 1)
    breakdown = Breakdown(
        step=0,
        step_ns=int(10e9),
        compute_ns=int(6e9),
        communication_ns=int(4e9),
        overlap_ns=overlap_ns,
        exposed_communication_ns=int(4e9) - overlap_ns,
        exposed_copy_ns=None,
        idle_ns=overlap_ns,
    )
    return [*breakdown.samples(), PAYLOAD_BYTES.at(1000.0 + rank, collective="all_reduce", axis="data")]


def _performed(order: TrialOrder, pipeline: Pipeline) -> list[TimedActions]:
    """One step of each rank: forward takes 1 ms, backward 2.

    In a later trial both take a tenth longer, and backward begins 1 ms late.
    """
    factor = 1e-3 * (1 + order.trial / 10)
    times_s: dict[tuple[int, ActionKind], float] = {
        (stage, kind): factor * (2 if kind == "backward" else 1)
        for stage in range(pipeline.stages)
        for kind in get_args(ActionKind)
    }
    return [
        TimedActions(
            trial=order.trial,
            time_ns=0,
            step=order.case.warm_up + order.case.steps,
            begun_ns=0,
            clock="fake",
            actions=[
                TimedAction(
                    timed.action.kind,
                    timed.action.stage,
                    timed.action.microbatch,
                    round((timed.start_s + late_s) * 1e9),
                    round((timed.end_s + late_s) * 1e9),
                )
                for timed in rank
                for late_s in (0.0 if timed.action.kind == "forward" else 1e-3 * order.trial,)
            ],
        )
        for rank in simulate(actions(pipeline), times_s).performed
    ]


def _write(folder: Path, order: TrialOrder, rank: int, steps_s: Sequence[float], *, is_good: bool) -> None:
    log = SampleLog(folder / f"rank{rank}.jsonl")
    trial = order.trial
    log.write(Opened(run=order.run, trial=trial, rank=rank, time_ns=0, pid=1, host="fake"))
    for step, step_s in enumerate([100.0, *steps_s]):
        samples = [
            STEP_SECONDS.at(step_s),
            PHASE_SECONDS.at(step_s / 2, phase="backward"),
            PHASE_SECONDS.at(step_s / 4 + rank, phase="forward"),
            LOSS.at(2.0 + rank),
            OBSERVER_SECONDS.at(step_s / (100 - 50 * rank)),
            RESIDENT_BYTES.at(1e6 * (rank + 1)),
        ]
        log.write(Reading(trial=trial, time_ns=0, mark="measured" if step else "warm_up", step=step, samples=samples))
    log.write(Reading(trial=trial, time_ns=0, mark="traced", step=len(steps_s) + 1, samples=_traced(rank, trial)))
    pipeline = order.case.spec().pipeline(order.case)
    if pipeline is not None:
        log.write(_performed(order, pipeline)[rank])
        activations = [LIVE_TENSOR_BYTES.at(1e6 * (rank + 1), category="activations")]
        activations += [
            STAGE_ACTIVATION_BYTES.at(1e6 * (stage + 1), stage=str(stage)) for stage in pipeline.stages_of(rank)
        ]
        log.write(Reading(trial=trial, time_ns=0, mark="memory", step=len(steps_s) + 2, samples=activations))
    error = None if is_good else "it broke"
    log.write(Ended(trial=trial, time_ns=0, step=len(steps_s), error_type=error and "RuntimeError", error=error))
    log.close()
