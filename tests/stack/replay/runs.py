"""Runs whose profiler windows are real traces of GPUs, and whose steps a fake step clock counts.

Each rank's log, window and folder is written by the product's own writers, as ranks on these GPUs would write them.
Of a rank whose trace nobody published there is no window. The model, the memory and the phases are made up; the time
of a step is that of the trace's steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from bench.case import Case, Purpose, check
from bench.machine.gpus import Gpu
from bench.machine.machine import Machine
from bench.rank.train import StepSpeed
from bench.results.mfu import peak_of
from bench.results.timelines import read_files, save_timeline
from bench.session.persist import persist
from bench.store import run_dir
from bench.store.history import History
from bench.store.run_dir import Run
from bench.store.summary import Summary
from collectors.metrics import rank as rank_metrics
from collectors.metrics.metric import Sample
from collectors.sample_log import Ended, Mark, Note, Opened, Reading, SampleLog
from collectors.traces.breakdown import Breakdown, breakdowns, why_no_communication
from collectors.traces.timeline import Timeline
from tests.bench.made.examples import make_case, make_machine
from workloads.cost_models.shape import PRESETS
from workloads.spec import Precision

TRACES = Path(__file__).parents[3] / "../shared/data/traces"
TRIALS, STEPS, WARM_UP = 3, 20, 5
_GIB = 1 << 30
_PHASES = {"data": 0.01, "forward": 0.31, "backward": 0.6, "optimizer": 0.06}
"""Share of each phase in a step of the fake clock."""
_MEMORY = {
    rank_metrics.ALLOCATED_BYTES: 9 * _GIB,
    rank_metrics.RESERVED_BYTES: 14 * _GIB,
    rank_metrics.PEAK_BYTES: 12 * _GIB,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSet:
    """The published traces of one run. files: of some of its ranks, in order. gpu: as its driver names it.

    has_nvml: False where another vendor's driver is there.
    """

    name: str
    files: tuple[str, ...]
    gpu: str
    memory_bytes: int
    ranks: int
    strategy: str = "ddp"
    precision: Precision = "fp32"
    has_nvml: bool = True

    def paths(self, folder: Path = TRACES) -> list[Path]:
        """Return its files below a folder of traces."""
        return [folder / f"{file}.json.gz" for file in self.files]


SETS = (
    TraceSet(
        name="v100",
        files=tuple(f"dlrm_v100_rank{rank}" for rank in range(8)),
        gpu="Tesla V100-SXM2-32GB",
        memory_bytes=32 * _GIB,
        ranks=8,
    ),
    TraceSet(
        name="a100-of-2",
        files=("nccl_a100_rank0_of_2",),
        gpu="NVIDIA A100-PG509-200",
        memory_bytes=40 * _GIB,
        ranks=2,
    ),
    TraceSet(
        name="a100-of-8",
        files=("a100_rank3_of_8",),
        gpu="NVIDIA A100-PG509-200",
        memory_bytes=40 * _GIB,
        ranks=8,
    ),
    TraceSet(
        name="mi300x",
        files=("resnet_mi300x_rank0_of_8",),
        gpu="AMD Instinct MI300X",
        memory_bytes=192 * _GIB,
        ranks=8,
        has_nvml=False,
    ),
    TraceSet(
        name="h100",
        files=("qwen_h100_rank0_of_1",),
        gpu="NVIDIA H100 80GB HBM3",
        memory_bytes=80 * _GIB,
        ranks=1,
        strategy="single",
        precision="bf16",
    ),
    TraceSet(
        name="b200",
        files=("inference_b200_rank0_of_8",),
        gpu="NVIDIA B200",
        memory_bytes=178 * _GIB,
        ranks=8,
        strategy="tensor_parallel",
        precision="bf16",
    ),
)
"""The last two are not among the traces that come with this project: docs/measured/replay.md names their source."""


@dataclass(slots=True, kw_only=True)
class ReplayedRun:
    """A run that goes on: its first trial as long as `write_until` lets it, the others at once in `finish`.

    begun_s: Unix time of its begin.
    """

    traces: TraceSet
    timelines: Sequence[Timeline]
    case: Case
    run: Run
    begun_s: float
    _is_traced: bool = False
    _logs: list[SampleLog] = field(default_factory=list)
    _done: list[int] = field(default_factory=list)
    _breakdowns: dict[int, list[Breakdown]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._breakdowns = {timeline.rank: breakdowns(timeline) for timeline in self.timelines}
        self._logs = [SampleLog(self.run.folder / f"rank{rank}.jsonl") for rank in range(self.case.ranks)]
        self._open(0, self.begun_s)

    def step_s(self, rank: int) -> float:
        """Return the median step of the rank's trace; of a rank without a trace that of the first one.

        A trace without a marked step is taken as one step.
        """
        timeline = next((timeline for timeline in self.timelines if timeline.rank == rank), self.timelines[0])
        steps_ns = [breakdown.step_ns for breakdown in self._breakdowns[timeline.rank]]
        return median(steps_ns or [int(timeline.end_ns.max() - timeline.start_ns.min())]) / 1e9

    def uuid(self, rank: int) -> str:
        """Return the UUID of the rank's GPU, as CUDA reports it."""
        return f"{self.traces.name}-{rank}"

    def write_until(self, at_s: float) -> None:
        """Log all steps of the first trial that have ended so many seconds after the run's begin."""
        for rank in range(self.case.ranks):
            self._write_steps(0, rank, int(at_s / self.step_s(rank)) - self._done[rank], self.begun_s)

    def trace(self) -> None:
        """Write the windows of the first trial, after which it has no more steps."""
        for rank in range(self.case.ranks):
            self._write_window(0, rank)
        self._is_traced = True

    def finish(self) -> Summary:
        """End the first trial, and write the others; return what the run's folder says then."""
        now_s = self.begun_s
        for trial in range(self.case.trials):
            if trial:
                self._open(trial, now_s)
            for rank in range(self.case.ranks):
                steps = WARM_UP + self.case.steps
                self._write_steps(trial, rank, max(0, steps - self._done[rank]), now_s)
                if trial or not self._is_traced:
                    self._write_window(trial, rank)
                time_ns = round((self.begun_s + self._done[rank] * self.step_s(rank)) * 1e9)
                self._logs[rank].write(Ended(trial=trial, time_ns=time_ns, step=self._done[rank]))
            now_s += max(done * self.step_s(rank) for rank, done in enumerate(self._done))
        for log in self._logs:
            log.close()
        self.run.close()
        summary = run_dir.summarise(self.run.folder, "done", None)
        return replace(summary, ended_ns=round(now_s * 1e9))

    def _open(self, trial: int, at_s: float) -> None:
        self._done = [0] * self.case.ranks
        for rank, log in enumerate(self._logs):
            uuid = self.uuid(rank) if self.traces.has_nvml else None
            opened = Opened(
                run=self.run.id,
                trial=trial,
                rank=rank,
                time_ns=round(at_s * 1e9),
                pid=4000 + rank,
                host=self.run.machine.hostname,
                gpu_uuid=uuid,
            )
            log.write(opened)

    def _write_steps(self, trial: int, rank: int, count: int, trial_begun_s: float) -> None:
        case, step_s = self.case, self.step_s(rank)
        tokens = case.shape.tokens / case.ranks
        peak = peak_of(self.traces.gpu, case.precision)
        speed = StepSpeed(case, tokens=tokens, peak=peak, ceiling_flops_per_second=None)
        for number in range(self._done[rank], self._done[rank] + count):
            mark: Mark = "measured" if number >= WARM_UP else "warm_up"
            of_step_s = step_s * (1 + 0.004 * (number % 5 - 2))  # Around its median, as steps are.
            samples = [
                rank_metrics.STEP_SECONDS.at(of_step_s),
                *(rank_metrics.PHASE_SECONDS.at(share * of_step_s, phase=name) for name, share in _PHASES.items()),
                rank_metrics.TOKENS.at(tokens * (number + 1)),
                *(speed.samples(of_step_s) if mark == "measured" else []),
                rank_metrics.LOSS.at(6.0 + 4.0 / (1 + number / 50)),
                *(metric.at(size) for metric, size in _MEMORY.items()),
                rank_metrics.OBSERVER_SECONDS.at(1e-5),
            ]
            self._log(rank, trial, mark, number, samples, trial_begun_s + (number + 1) * step_s)
        self._done[rank] += count

    def _write_window(self, trial: int, rank: int) -> None:
        """Write what `bench.rank.instrumentation` does after a profiler window."""
        log, now_ns = self._logs[rank], round((self.begun_s + self._done[rank] * self.step_s(rank)) * 1e9)
        for timeline in self.timelines:
            if timeline.rank != rank:
                continue
            save_timeline(timeline, self.run.folder, trial)
            if (reason := why_no_communication(timeline)) is not None:
                log.write(Note(trial=trial, time_ns=now_ns, text=f"communication is absent: {reason}"))
            for number, breakdown in enumerate(self._breakdowns[rank], self._done[rank]):
                self._log(rank, trial, "traced", number, breakdown.samples(), now_ns / 1e9)

    def _log(self, rank: int, trial: int, mark: Mark, step: int, samples: list[Sample], at_s: float) -> None:
        time_ns = round(at_s * 1e9)
        self._logs[rank].write(Reading(trial=trial, time_ns=time_ns, mark=mark, step=step, samples=samples))


def begun(traces: TraceSet, runs: Path, *, begun_s: float, folder: Path = TRACES) -> ReplayedRun:
    """Read the traces of a run, and begin it. runs: where its folder is made. folder: of the traces."""
    timelines = read_files(traces.paths(folder))
    machine = machine_of(traces)
    case = check(
        replace(
            make_case(traces.strategy, traces.ranks),
            model=replace(PRESETS["125m"], batch=8 * traces.ranks, heads=16, kv_heads=8, width=1024),
            device="cuda",
            backend="nccl",
            precision=traces.precision,
            trials=TRIALS,
            steps=STEPS,
            warm_up=WARM_UP,
            trace_steps=max(1, len(breakdowns(timelines[0]))),
        )
    )
    run = run_dir.begin(case, machine, runs, purpose=Purpose(origin="nightly"), name=f"replay-{traces.name}")
    hosted = [replace(timeline, about=replace(timeline.about, host=machine.hostname)) for timeline in timelines]
    return ReplayedRun(traces=traces, timelines=hosted, case=case, run=run, begun_s=begun_s)


def machine_of(traces: TraceSet) -> Machine:
    """Return the node of these GPUs; NVML names none of another vendor."""
    gpus = tuple(
        Gpu(index=rank, name=traces.gpu, uuid=f"GPU-{traces.name}-{rank}", memory_bytes=traces.memory_bytes)
        for rank in range(traces.ranks)
    )
    return replace(
        make_machine(),
        hostname=f"node-{traces.name}",
        torch_version="2.13.0+cu130",
        gpus=gpus if traces.has_nvml else (),
    )


def stored(summaries: Sequence[tuple[Summary, Machine]], url: str) -> Iterator[Summary]:
    """Keep the runs in a history, as `observatory run` does, and yield them as it keeps them."""
    with History(url) as history:
        for summary, machine in summaries:
            (kept,) = persist([summary], machine, history, None).summaries
            yield kept
