"""Forecasts a case: its memory, its step by part with intervals, and the fact that decides; torch-free and quick.

The parts of a step are computing, exposed communication by level, a pipeline's bubble, the optimizer and, on a CPU, the
host. Each part names the page of docs/cost_models that describes its model. Intervals come from the ranges of the rates
(`bench.analysis.prediction.calibration`): the step is computed with all rates at the low ends, and again at the high
ends. They do not cover what the models leave out, for example a host that is too slow to launch kernels on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bench.analysis.prediction.calibration import (
    CORNERS,
    FULLY_HIDDEN,
    Calibration,
    Corner,
    Range,
    sheet_calibration,
)
from bench.analysis.prediction.decision import Decision, Seconds, decide
from bench.analysis.prediction.exposed import ExposedTransfer, exposed_transfers
from bench.analysis.prediction.memory import MemoryFit, memory_fit
from bench.case import Case
from bench.errors import plural
from bench.machine.machines.machine_file import PlannedMachine
from bench.results.mfu import Peak, mfu
from workloads.core.precision_options import gradient_bytes, is_master_kept, stream_bytes
from workloads.cost_models.absent import Absent
from workloads.cost_models.roofline import (
    ForwardTimes,
    ForwardWork,
    Recomputed,
    compute_of,
    forward_work,
    update_bytes,
)
from workloads.cost_models.step_time import ComputeTime, StepTime
from workloads.options import checkpointed_ratio, microbatch_count, rerun_ratio
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

    level: outermost level of links that communication crosses; None for other parts.
    seconds: the time that it adds to the step, or why it is unknown.
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
class StepForecast:
    """The predicted step of a case.

    parts: of the step; empty if it is absent. step: at the rates' values, with its optimizer. step_s: its seconds with
    their range. divided: the step by transfer; None if it is absent.
    """

    case: Case
    calibration: Calibration
    parts: tuple[StepPart, ...]
    step: StepTime | Absent
    step_s: Range | Absent
    divided: Seconds | None

    @property
    def rests_on(self) -> tuple[str, ...]:
        """Basis of the step, for people; empty if it is absent."""
        return () if isinstance(self.step_s, Absent) else self.calibration.rests_on

    @property
    def missing(self) -> tuple[str, ...]:
        """Each rate that was not measured, with the command that measures it."""
        return self.calibration.missing

    @property
    def optimizer_s(self) -> Range | Absent:
        """Time of the optimizer, or why it is unknown."""
        of_step = self.step if isinstance(self.step, Absent) else Absent(reason="a probe updates nothing")
        return next((part.seconds for part in self.parts if part.name == "optimizer"), of_step)

    def seconds(self, name: PartName) -> float | None:
        """Return the seconds of a part over all its levels; None if they are absent."""
        values = [part.seconds for part in self.parts if part.name == name]
        return None if any(isinstance(each, Absent) for each in values) else sum(_value(each) for each in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(StepForecast):
    """The predicted memory and step of a case.

    tokens_per_second, mfu: of the whole step, or why they are absent. mfu_of: what MFU is a share of, for people.
    """

    memory: MemoryFit
    tokens_per_second: Range | Absent
    mfu: Range | Absent
    mfu_of: str
    decides: Decision

    @property
    def machine(self) -> str:
        """Name of the machine."""
        return self.calibration.name

    def days(self, tokens: float) -> Range | Absent:
        """Return the days that this many tokens take, without checkpoints, failures and restarts."""
        rate = self.tokens_per_second
        if isinstance(rate, Absent):
            return rate
        days = [tokens / each / 86400 for each in (rate.value, rate.high, rate.low)]
        return Range(value=days[0], low=days[1], high=days[2], origin=rate.origin)


def _value(seconds: Range | Absent) -> float:
    return 0.0 if isinstance(seconds, Absent) else seconds.value


def forecast_on(case: Case, machine: PlannedMachine, recomputed: Recomputed | None = None) -> Forecast:
    """Predict a case on a remote machine by its data sheets. Does not query this host.

    recomputed: what backward recomputes, if another program differs from the case's options in it.
    """
    return forecast(
        case,
        sheet_calibration(case, machine),
        memory_fit(case, machine),
        peak=machine.peak(case.precision),
        peak_words="the data sheet's peak",
        recomputed=recomputed,
    )


def forecast(
    case: Case,
    calibration: Calibration,
    memory: MemoryFit,
    *,
    peak: Peak | Absent,
    peak_words: str,
    recomputed: Recomputed | None = None,
) -> Forecast:
    """Predict a case at these rates. peak: what MFU is a share of. peak_words: the same, for people."""
    step = step_forecast(case, calibration, recomputed)
    rate: Range | Absent
    share: Range | Absent
    if isinstance(step.step_s, Absent):
        rate = share = step.step_s
    else:
        tokens = case.shape.tokens
        rate = Range(
            value=tokens / step.step_s.value,
            low=tokens / step.step_s.high,
            high=tokens / step.step_s.low,
            origin=step.step_s.origin,
        )
        share = _mfu(case, step.step_s, peak)
    return Forecast(
        case=case,
        calibration=calibration,
        parts=step.parts,
        step=step.step,
        step_s=step.step_s,
        divided=step.divided,
        memory=memory,
        tokens_per_second=rate,
        mfu=share,
        mfu_of=peak_words,
        decides=decide(case, memory, step.divided),
    )


def step_forecast(case: Case, calibration: Calibration, recomputed: Recomputed | None = None) -> StepForecast:
    """Predict the step of a case at these rates, without its memory. recomputed: see `forecast_on`."""
    moved_bytes = Absent(reason="a probe updates nothing") if case.model is None else optimizer_bytes(case)
    steps = _steps(case, calibration, moved_bytes, recomputed)
    if isinstance(steps, Absent):
        return StepForecast(case=case, calibration=calibration, parts=(), step=steps, step_s=steps, divided=None)
    return StepForecast(
        case=case,
        calibration=calibration,
        parts=tuple(_parts(case, calibration, steps, moved_bytes)),
        step=steps["value"].step,
        step_s=_range({corner: each.step.step_s for corner, each in steps.items()}, _origin(calibration)),
        divided=steps["value"],
    )


def hidden_ratio(case: Case, calibration: Calibration) -> float | None:
    """Return the share of a case's communication that the cost model hides; None if it sends nothing or is unknown."""
    steps = _steps(case, replace(calibration, hiding=FULLY_HIDDEN), 0.0, None)
    return None if isinstance(steps, Absent) else steps["value"].step.hidden_ratio


# The step at one corner of the rates


def why_no_step(case: Case, calibration: Calibration) -> Absent | None:
    """Return the first reason why a step is absent; None if there is none."""
    return next(reasons_for_no_step(case, calibration), None)


def reasons_for_no_step(case: Case, calibration: Calibration) -> Iterator[Absent]:
    """Yield why a step is absent: no model of it, and each of its rates that is unknown."""
    if case.model is None:
        yield Absent(reason="a probe trains no model")
        return
    if isinstance(moved_bytes := optimizer_bytes(case), Absent):
        yield moved_bytes
    if isinstance(calibration.products, Absent):
        yield calibration.products
    if isinstance(calibration.memory, Absent):
        yield calibration.memory
    spec = case.spec()
    if not (transfers := spec.transfers(case)):
        return
    if isinstance(calibration.links, Absent):
        yield calibration.links
    elif (missing := missing_link(transfers, spec.mesh(case), calibration.links["value"])) is not None:
        yield missing


def _steps(
    case: Case, calibration: Calibration, moved_bytes: float | Absent, recomputed: Recomputed | None
) -> dict[Corner, Seconds] | Absent:
    """Return the step at each corner, or why there is none. moved_bytes: see `optimizer_bytes`."""
    if (missing := why_no_step(case, calibration)) is not None:
        return missing
    work = work_of(case)
    return {corner: _step(case, calibration, corner, work, moved_bytes, recomputed) for corner in CORNERS}


def _step(
    case: Case,
    calibration: Calibration,
    corner: Corner,
    work: ForwardWork,
    moved_bytes: float | Absent,
    recomputed: Recomputed | None,
) -> Seconds:
    compute = compute_at(case, work, calibration, corner, recomputed)
    links = calibration.links if isinstance(calibration.links, Absent) else calibration.links[corner]
    hiding = calibration.hiding.at(corner)
    step = step_of(case, case.spec(), compute=compute, interconnect=links, hiding=hiding)
    assert isinstance(step, StepTime), "its rates are known"
    assert not isinstance(calibration.memory, Absent), "checked before"
    exposed: Sequence[ExposedTransfer] = ()
    if not isinstance(links, Absent):
        whole = None if case.spec().pipeline(case) is None else step
        exposed = exposed_transfers(case, compute, links, whole=whole, hiding=hiding)
    if not isinstance(moved_bytes, Absent):
        optimizer_s = moved_bytes / calibration.memory.at(corner)
        step = replace(step, compute=replace(compute, optimizer_s=optimizer_s))
    return Seconds(step=step, exposed=exposed)


def work_of(case: Case) -> ForwardWork:
    """Return the work of the case's forward, in products of the size that a rank computes."""
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


def compute_at(
    case: Case, work: ForwardWork, calibration: Calibration, corner: Corner, recomputed: Recomputed | None = None
) -> ComputeTime:
    """Return the mean rank's forward and backward: each product at the rate of its size, the rest by its bytes.

    recomputed: None to follow the case's options.
    """
    assert not isinstance(calibration.memory, Absent), "the caller looked"
    ranks = case.spec().training_ranks(case)
    moved = calibration.elementwise * work.elementwise_bytes
    forward = ForwardTimes(
        products_s=sum(each.flops / calibration.rate(each.size, corner) for each in work.products) / ranks,
        head_s=work.head.flops / calibration.rate(work.head.size, corner) / ranks,
        attention_s=work.attention.flops / calibration.attention_rate(work.attention.size, corner) / ranks,
        elementwise_s=moved / calibration.memory.at(corner) / ranks,
    )
    compute = compute_of(forward, recomputed_of(case) if recomputed is None else recomputed)
    if calibration.pass_host is None:
        return compute
    # The ends of a time are the opposite ends of a rate.
    pass_s = {"low": calibration.pass_host.high, "high": calibration.pass_host.low}.get(
        corner, calibration.pass_host.value
    )
    return _with_host(compute, case, pass_s)


def _with_host(compute: ComputeTime, case: Case, pass_s: float) -> ComputeTime:
    """Add the host's time to both phases; a block that backward computes again is one more pass."""
    forward_s, again_s = pass_s * _passes(case), pass_s * _passes(case) * rerun_ratio(case)
    return replace(
        compute,
        forward_s=compute.forward_s + forward_s,
        backward_s=compute.backward_s + forward_s + again_s,
        host_s=2 * forward_s + again_s,
    )


def _passes(case: Case) -> float:
    """Return how often a mean rank computes forward of a block in a step."""
    pipeline = case.spec().pipeline(case)
    return case.shape.layers * microbatch_count(case) / (1 if pipeline is None else pipeline.ranks)


def pass_host_s(case: Case, calibration: Calibration, step_s: float) -> float | None:
    """Return the host time of a pass that explains a measured step; 0 if the step took no longer than predicted.

    None if no step is predicted. What the step took beyond the prediction is all of the host's time, and more of it is
    never assumed: communication that it might hide as well could be a link slower than its rate.
    """
    if why_no_step(case, calibration) is not None:
        return None

    def predicted_s(pass_s: float) -> float:
        rates = replace(calibration, pass_host=Range(value=pass_s, low=pass_s, high=pass_s, origin=""))
        return _step(case, rates, "value", work_of(case), optimizer_bytes(case), None).step.step_s

    without_s = predicted_s(0.0)
    if step_s <= without_s:
        return 0.0
    beyond_s = step_s - without_s
    pass_s = beyond_s / (_passes(case) * (2 + rerun_ratio(case)))
    # In a pipeline other ranks wait for each pass, so that the step grows by more than one rank's passes.
    return pass_s * beyond_s / max(beyond_s, predicted_s(pass_s) - without_s)


def recomputed_of(case: Case) -> Recomputed:
    """Return what backward recomputes; selective checkpointing does not recompute products and attention."""
    whole = rerun_ratio(case)
    return Recomputed(products=whole, attention=whole, elementwise=checkpointed_ratio(case))


def optimizer_bytes(case: Case) -> float | Absent:
    """Return the bytes that the optimizer reads and writes on the rank with the largest update."""
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


# From corners to ranges


def _range(seconds: Mapping[Corner, float], origin: str) -> Range:
    """Return the range of the seconds over all corners: high rates usually give the low end.

    A part may grow with the rates: exposed communication grows if the computing that hides it becomes faster.
    """
    ends = (*seconds.values(),)
    return Range(value=seconds["value"], low=min(ends), high=max(ends), origin=origin)


def _origin(calibration: Calibration) -> str:
    assert not isinstance(calibration.products, Absent), "a step has a rate"
    assert not isinstance(calibration.memory, Absent), "a step has this rate as well"
    origins = [calibration.products[0][1].origin]
    if not isinstance(calibration.links, Absent):
        origins.append(calibration.links_origin)
    of_others = (calibration.memory, calibration.pass_host)
    origins += [each.origin for each in of_others if each is not None and each.low < each.high]
    return "; ".join(dict.fromkeys(origins))


def _parts(
    case: Case, calibration: Calibration, steps: Mapping[Corner, Seconds], moved_bytes: float | Absent
) -> Iterator[StepPart]:
    assert not isinstance(calibration.products, Absent), "a step has a rate"
    origin = calibration.products[0][1].origin

    def part(name: PartName, seconds: Range | Absent, level: str | None = None) -> StepPart:
        return StepPart(name=name, level=level, seconds=seconds, model=MODELS[name])

    yield part("compute", _range({corner: each.compute_s for corner, each in steps.items()}, origin))
    levels = dict.fromkeys(each.level for each in steps["value"].exposed)
    for level in levels:
        at = {
            corner: sum(each.exposed_s for each in step.exposed if each.level == level)
            for corner, step in steps.items()
        }
        yield part("communication", _range(at, calibration.links_origin), level)
    if case.spec().pipeline(case) is not None:
        yield part("bubble", _range({corner: each.step.bubble_s for corner, each in steps.items()}, origin))
    yield part("optimizer", _optimizer(calibration, steps, moved_bytes))
    yield part("host", _host(case, calibration, steps))


def _optimizer(
    calibration: Calibration, steps: Mapping[Corner, Seconds], moved_bytes: float | Absent
) -> Range | Absent:
    if isinstance(moved_bytes, Absent):
        return moved_bytes
    if isinstance(calibration.memory, Absent):
        return calibration.memory
    return _range({corner: each.step.compute.optimizer_s for corner, each in steps.items()}, calibration.memory.origin)


def _host(case: Case, calibration: Calibration, steps: Mapping[Corner, Seconds]) -> Range | Absent:
    if calibration.pass_host is not None:
        seconds = {corner: each.step.compute.host_s for corner, each in steps.items()}
        return _range(seconds, calibration.pass_host.origin)
    if case.device == "cpu":
        return Absent(
            reason=f"no run of another case of {case.strategy} on this mesh, in {case.precision} with"
            f" {plural(case.threads, 'thread')} per rank, shows what steps take beyond the cost models;"
            f" `observatory run {case.strategy}` with the same options but another --batch does"
        )
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
