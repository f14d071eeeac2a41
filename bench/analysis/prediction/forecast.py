"""Forecast of a case: its memory, its step by part with intervals, and the fact that decides; torch-free and quick.

A step is computing, exposed communication by level, a pipeline's bubble and the optimizer. Each part names the page of
docs/cost_models that describes its model. Intervals are those of the rates (`bench.analysis.prediction.calibration`):
the step is computed with all rates at the low ends of their ranges, and again at the high ends. They do not cover what
the models leave out, such as a host that is too slow to launch kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.analysis.prediction.calibration import CORNERS, Calibration, Corner, Range, sheet_calibration
from bench.analysis.prediction.decision import Decision, Seconds, decide
from bench.analysis.prediction.exposed import ExposedTransfer, exposed_transfers
from bench.analysis.prediction.fit import MemoryFit, memory_fit
from bench.case import Case
from bench.machine.machines.machine_file import PlannedMachine
from bench.results.mfu import Peak, mfu
from workloads.core.precision_options import gradient_bytes, is_master_kept, stream_bytes
from workloads.cost_models.absent import Absent
from workloads.cost_models.roofline import (
    BACKWARD_ATTENTION,
    BACKWARD_ELEMENTWISE,
    BACKWARD_PRODUCTS,
    ForwardWork,
    forward_work,
    update_bytes,
)
from workloads.cost_models.step_time import FORWARD_SHARE, ComputeTime, StepTime, flops_per_rank
from workloads.options import microbatch_count, rerun_ratio
from workloads.pipeline_parallel.expected_step import missing_link, step_of
from workloads.spec import ELEMENT_BYTES

PartName = Literal["compute", "communication", "bubble", "optimizer", "host"]

MODELS: Mapping[str, str] = {
    "memory": "memory.md",
    "compute": "step.md",
    "communication": "communication.md",
    "bubble": "pipeline.md",
    "optimizer": "step.md",
    "host": "step.md",
}
"""Page of docs/cost_models that describes the model of each part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """A part of the step.

    level: of communication, the outermost level of links that it crosses; None of other parts.
    seconds: what it adds to the step, or why that is not known.
    model: page of docs/cost_models.
    """

    name: PartName
    level: str | None
    seconds: Range | Absent
    model: str

    @property
    def title(self) -> str:
        """The part in words: "exposed, InfiniBand"."""
        return self.name if self.level is None else f"exposed, {self.level}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a case would hold and take.

    machine: its name. step_s, tokens_per_second, mfu: of the whole step, or why they are absent.
    mfu_of: what MFU is a share of, for people.
    rests_on, missing: as of `Calibration`.
    """

    case: Case
    machine: str
    memory: MemoryFit
    parts: tuple[StepPart, ...]
    step_s: Range | Absent
    tokens_per_second: Range | Absent
    mfu: Range | Absent
    mfu_of: str
    decides: Decision
    rests_on: tuple[str, ...]
    missing: tuple[str, ...]

    def seconds(self, name: PartName) -> float | None:
        """Return the seconds of a part over all its levels; None where they are absent."""
        values = [part.seconds for part in self.parts if part.name == name]
        return None if any(isinstance(each, Absent) for each in values) else sum(_value(each) for each in values)

    def days(self, tokens: float) -> Range | Absent:
        """Return the days that so many tokens take, without checkpoints, failures and restarts."""
        rate = self.tokens_per_second
        if isinstance(rate, Absent):
            return rate
        days = [tokens / each / 86400 for each in (rate.value, rate.high, rate.low)]
        return Range(value=days[0], low=days[1], high=days[2], origin=rate.origin)


def _value(seconds: Range | Absent) -> float:
    return 0.0 if isinstance(seconds, Absent) else seconds.value


def forecast_on(case: Case, machine: PlannedMachine) -> Forecast:
    """Predict a case on a machine that is not here, by its data sheets. Asks nothing of this host."""
    return forecast(
        case,
        sheet_calibration(case, machine),
        memory_fit(case, machine),
        peak=machine.peak(case.precision),
        peak_words="the data sheet's peak",
    )


def forecast(
    case: Case, calibration: Calibration, memory: MemoryFit, *, peak: Peak | Absent, peak_words: str
) -> Forecast:
    """Predict a case at these rates. peak: what MFU is a share of. peak_words: the same, for people."""
    moved_bytes = Absent(reason="a probe updates nothing") if case.model is None else optimizer_bytes(case)
    steps = _steps(case, calibration, moved_bytes)
    if isinstance(steps, Absent):
        return Forecast(
            case=case,
            machine=calibration.name,
            memory=memory,
            parts=(),
            step_s=steps,
            tokens_per_second=steps,
            mfu=steps,
            mfu_of=peak_words,
            decides=decide(case, memory, None),
            rests_on=calibration.rests_on,
            missing=calibration.missing,
        )
    parts = tuple(_parts(case, calibration, steps, moved_bytes))
    step_s = _range({corner: step.total_s for corner, step in steps.items()}, _origin(calibration))
    rate = Range(
        value=case.shape.tokens / step_s.value,
        low=case.shape.tokens / step_s.high,
        high=case.shape.tokens / step_s.low,
        origin=step_s.origin,
    )
    return Forecast(
        case=case,
        machine=calibration.name,
        memory=memory,
        parts=parts,
        step_s=step_s,
        tokens_per_second=rate,
        mfu=_mfu(case, step_s, peak),
        mfu_of=peak_words,
        decides=decide(case, memory, steps["value"]),
        rests_on=calibration.rests_on,
        missing=calibration.missing,
    )


def hidden_ratio(case: Case, calibration: Calibration) -> float | None:
    """Return the share of a case's communication that the cost model hides; None where it sends or knows nothing."""
    steps = _steps(case, calibration, 0.0)
    if isinstance(steps, Absent):
        return None
    sent_s = sum(each.elapsed_s for each in steps["value"].exposed)
    return None if sent_s == 0 else max(0.0, 1 - steps["value"].exposed_s / sent_s)


# The step at one corner of the rates.


def _steps(case: Case, calibration: Calibration, moved_bytes: float | Absent) -> dict[Corner, Seconds] | Absent:
    """Return the step at each corner, or why there is none. moved_bytes: see `optimizer_bytes`."""
    if case.model is None:
        return Absent(reason="a probe trains no model")
    if isinstance(calibration.products, Absent):
        return calibration.products
    if not calibration.is_whole and isinstance(calibration.memory, Absent):
        return calibration.memory
    spec = case.spec()
    transfers, axes = spec.transfers(case), spec.mesh(case)
    if transfers:
        if isinstance(calibration.links, Absent):
            return calibration.links
        if (missing := missing_link(transfers, axes, calibration.links["value"])) is not None:
            return missing
    work = None if calibration.is_whole else _work(case)
    return {corner: _step(case, calibration, corner, work, moved_bytes) for corner in CORNERS}


def _step(
    case: Case, calibration: Calibration, corner: Corner, work: ForwardWork | None, moved_bytes: float | Absent
) -> Seconds:
    compute = _whole_compute(case, calibration, corner) if work is None else _compute(case, calibration, corner, work)
    links = None if isinstance(calibration.links, Absent) else calibration.links[corner]
    optimizer_s = None
    if not isinstance(calibration.memory, Absent) and not isinstance(moved_bytes, Absent):
        optimizer_s = moved_bytes / calibration.memory.at(corner)
    exposed: Sequence[ExposedTransfer] = ()
    bubble_s = 0.0
    if links is not None:
        whole: StepTime | None = None
        if case.spec().pipeline(case) is not None:
            simulated = step_of(case, case.spec(), compute=compute, interconnect=links)
            assert isinstance(simulated, StepTime), "its links are known"
            whole, bubble_s = simulated, simulated.bubble_s
        exposed = exposed_transfers(case, compute, links, whole=whole, hiding=calibration.hiding.at(corner))
    return Seconds(compute_s=compute.step_s, exposed=exposed, bubble_s=bubble_s, optimizer_s=optimizer_s)


def _whole_compute(case: Case, calibration: Calibration, corner: Corner) -> ComputeTime:
    """Return forward and backward at the one rate of whole steps."""
    ranks, rate = case.spec().training_ranks(case), calibration.rate(1.0, corner)
    forward_s = flops_per_rank(case.shape, ranks) * FORWARD_SHARE / rate
    total_s = flops_per_rank(case.shape, ranks, recomputed_ratio=rerun_ratio(case)) / rate
    return ComputeTime(forward_s=forward_s, backward_s=total_s - forward_s)


def _work(case: Case) -> ForwardWork:
    """Return the forward of the case's step, in products of the size that a rank computes."""
    spec, shape = case.spec(), case.shape
    axes = spec.mesh(case)
    tokens = shape.tokens / case.data_ranks / microbatch_count(case) / axes.get("sequence", 1)
    return forward_work(
        shape,
        microbatch_tokens=tokens,
        tensor_ranks=axes.get("tensor", 1),
        element_bytes=ELEMENT_BYTES[case.precision],
        stream_bytes=stream_bytes(case),
        is_compiled=case.options.get("compile", "none") != "none",
    )


def _compute(case: Case, calibration: Calibration, corner: Corner, work: ForwardWork) -> ComputeTime:
    """Return forward and backward of a mean rank: each product at its size's rate, the rest by its bytes."""
    assert not isinstance(calibration.memory, Absent), "checked before"
    ranks = case.spec().training_ranks(case)
    products_s = sum(each.flops / calibration.rate(each.size, corner) for each in work.products) / ranks
    attention_s = work.attention.flops / calibration.rate(work.attention.size, corner) / ranks
    elementwise_s = work.elementwise_bytes / calibration.memory.at(corner) / ranks
    forward_s = products_s + attention_s + elementwise_s
    backward_s = (
        BACKWARD_PRODUCTS * products_s + BACKWARD_ATTENTION * attention_s + BACKWARD_ELEMENTWISE * elementwise_s
    )
    return ComputeTime(forward_s=forward_s, backward_s=backward_s + rerun_ratio(case) * forward_s)


def optimizer_bytes(case: Case) -> float | Absent:
    """Return what the optimizer of the rank that updates most reads and writes."""
    if case.options.get("offload"):
        return Absent(reason="the host updates offloaded states, and nothing measures at which rate")
    spec = case.spec()
    return max(
        update_bytes(
            spec.states(case, rank),
            has_master=is_master_kept(case),
            gradient_bytes=gradient_bytes(case),
            is_clipped=float(case.options.get("clip", 0.0)) > 0,
        )
        for rank in sorted({0, case.ranks // 2, case.ranks - 1})
    )


# What the corners say together.


def _range(seconds: Mapping[Corner, float], origin: str) -> Range:
    """Return seconds at each corner as a range: high rates give the low end.

    A part may grow with the rates, as exposed communication does where computing that hides it becomes quicker.
    """
    ends = (*seconds.values(),)
    return Range(value=seconds["value"], low=min(ends), high=max(ends), origin=origin)


def _origin(calibration: Calibration) -> str:
    assert not isinstance(calibration.products, Absent), "a step has a rate"
    origins = [calibration.products[0][1].origin]
    if not isinstance(calibration.links, Absent):
        origins.append(calibration.links_origin)
    return "; ".join(dict.fromkeys(origins))


def _parts(
    case: Case, calibration: Calibration, steps: Mapping[Corner, Seconds], moved_bytes: float | Absent
) -> Iterator[StepPart]:
    assert not isinstance(calibration.products, Absent), "a step has a rate"
    origin = calibration.products[0][1].origin

    def part(name: PartName, seconds: Range | Absent, level: str | None = None) -> StepPart:
        return StepPart(name=name, level=level, seconds=seconds, model=MODELS[name])

    yield part("compute", _range({corner: step.compute_s for corner, step in steps.items()}, origin))
    levels = dict.fromkeys(each.level for each in steps["value"].exposed)
    for level in levels:
        at = {
            corner: sum(each.exposed_s for each in step.exposed if each.level == level)
            for corner, step in steps.items()
        }
        yield part("communication", _range(at, calibration.links_origin), level)
    if case.spec().pipeline(case) is not None:
        yield part("bubble", _range({corner: step.bubble_s for corner, step in steps.items()}, origin))
    yield part("optimizer", _optimizer(calibration, steps, moved_bytes))
    yield part("host", _host(case))


def _optimizer(
    calibration: Calibration, steps: Mapping[Corner, Seconds], moved_bytes: float | Absent
) -> Range | Absent:
    if isinstance(moved_bytes, Absent):
        return moved_bytes
    if isinstance(calibration.memory, Absent):
        return calibration.memory
    return _range({corner: step.optimizer_s or 0.0 for corner, step in steps.items()}, calibration.memory.origin)


def _host(case: Case) -> Absent:
    if case.device == "cpu":
        return Absent(reason="ranks on a CPU compute on the host itself")
    return Absent(
        reason=f"no model has the time of launches and of data; `observatory run {case.strategy}` on the machine shows"
        " it as idle"
    )


def _mfu(case: Case, step_s: Range, peak: Peak | Absent) -> Range | Absent:
    values = [mfu(case.shape, case.ranks, each, peak) for each in (step_s.value, step_s.high, step_s.low)]
    value, low, high = values
    if isinstance(value, Absent):
        return value
    return Range(
        value=value,
        low=value if isinstance(low, Absent) else low,
        high=1.0 if isinstance(high, Absent) else high,
        origin=step_s.origin,
    )
