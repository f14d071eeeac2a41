"""Prices of setups: memory and step by the cost models, and a cheap bound that orders the search."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from bench.analysis.choosing.ground import (
    NOT_IN_STATES,
    OWN_ERROR,
    RATE_PAIRS,
    Ground,
    MemoryNeed,
    RatePair,
    memory_need,
    states_bytes,
)
from bench.analysis.prediction.calibration import CORNERS, Corner
from bench.analysis.prediction.forecast import compute_at, optimizer_bytes, recomputed_of, work_of
from bench.case import Case
from workloads.core.precision_options import is_fp8
from workloads.cost_models.absent import Absent
from workloads.cost_models.interconnect import MeshAxis, axis_time_s, transfer_axis
from workloads.cost_models.schedules import HALVED_BACKWARD, Pipeline
from workloads.cost_models.step_time import ComputeTime, StepTime, step_of_times
from workloads.cost_models.terms import Collective, Transfer
from workloads.options import MICROBATCHES, microbatch_count
from workloads.pipeline_parallel.expected_step import missing_link, step_of

COMPUTING, RECOMPUTING, BUBBLE, OPTIMIZER = "computing", "recomputing", "bubble", "optimizer"
"""Parts of a step that are not communication; the other parts are named for the level that they cross."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A setup that fits, with its predicted step.

    parts_s: of the step; exposed communication by the outermost level of links that it crosses.
    levels: the outermost level that each axis of the mesh crosses.
    corners_s: the step if computing and links have the rates at the ends of their ranges.
    """

    case: Case
    memory: MemoryNeed
    step: StepTime
    parts_s: Mapping[str, float]
    levels: Mapping[str, str]
    corners_s: Mapping[RatePair, float]

    @property
    def step_s(self) -> float:
        """The predicted step."""
        return self.step.step_s

    @property
    def interval_s(self) -> tuple[float, float]:
        """The step at the fastest and the slowest corner, with the setup's own error."""
        return min(self.corners_s.values()) * (1 - OWN_ERROR), max(self.corners_s.values()) * (1 + OWN_ERROR)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all ranks."""
        return self.case.shape.tokens / self.step_s

    @property
    def limit(self) -> tuple[str, float]:
        """The limit of the step, with its share: the largest part except computing, or computing if all are small."""
        losses = {name: part_s / self.step_s for name, part_s in self.parts_s.items() if name != COMPUTING}
        name = max(losses, key=losses.__getitem__, default=COMPUTING)
        if losses.get(name, 0.0) < SMALL_LOSS:
            return COMPUTING, self.parts_s[COMPUTING] / self.step_s
        return name, losses[name]


SMALL_LOSS = 0.03
"""A part of the step with no larger share does not limit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times faster one setup is than another. low, high: over the possible rates."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether one of the two is faster at all rates."""
        return self.low > 1 or self.high < 1


def speed_ratio(faster: Candidate, slower: Candidate) -> Ratio:
    """Return how many times faster one setup is than another on the same machine.

    At each corner both have the same rates, so an error of the rates counts only as far as the two setups do different
    work; it cancels for equal work. Each setup's own error, which they do not share, remains.
    """
    at = [slower.corners_s[corner] / faster.corners_s[corner] for corner in faster.corners_s]
    own = (1 + OWN_ERROR) / (1 - OWN_ERROR) if faster.case != slower.case else 1.0
    return Ratio(value=slower.step_s / faster.step_s, low=min(at) / own, high=max(at) * own)


@dataclass(slots=True, kw_only=True)
class Pricing:
    """Prices setups on one ground, each at most once. predicted_count: number of predicted steps."""

    ground: Ground
    predicted_count: int = 0
    _memory: dict[str, MemoryNeed] = field(default_factory=dict)
    _states: dict[Hashable, int] = field(default_factory=dict)
    _candidates: dict[str, Candidate | Absent] = field(default_factory=dict)
    _lines: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    _computes: dict[Hashable, ComputeTime] = field(default_factory=dict)

    # Memory

    def memory(self, case: Case) -> MemoryNeed:
        """Return the memory of the rank that holds most; only the states if they alone do not fit."""
        key = _key(case)
        if key not in self._memory:
            least = self._least(case)
            room_bytes = self.ground.room_bytes
            if room_bytes is not None and least > room_bytes:
                parts = {"states": least}
                self._memory[key] = MemoryNeed(
                    total_bytes=least, fits=False, basis="states", parts=parts, is_least=True
                )
            elif (fewer := _fewer_microbatches(case)) is not None and not (at_least := self.memory(fewer)).fits:
                self._memory[key] = replace(at_least, is_least=True)
            else:
                self._memory[key] = memory_need(case, self.ground)
        return self._memory[key]

    def _least(self, case: Case) -> int:
        options = tuple(item for item in case.options.items() if item[0] not in NOT_IN_STATES)
        key = (case.strategy, options)
        if key not in self._states:
            self._states[key] = states_bytes(case)
        return self._states[key]

    # The step

    def compute(self, case: Case, corner: Corner = "value") -> ComputeTime:
        """Return the computing time of a mean rank at the rates of a corner."""
        axes = case.spec().mesh(case)
        key = (
            case.strategy,
            case.shape,
            corner,
            case.data_ranks,
            axes.get("tensor", 1),
            axes.get("sequence", 1),
            microbatch_count(case),
            recomputed_of(case),
            *(case.options.get(name) for name in ("compile", "weights")),
        )
        if key not in self._computes:
            self._computes[key] = compute_at(case, work_of(case), self.ground.rates(case), corner)
        return self._computes[key]

    def bound_s(self, case: Case) -> float:
        """Return an approximate lower bound of the step: computing, the schedule's bubble, and transfers inside stages.

        It is cheap, because it simulates nothing. It orders setups, and ends the search when no other can be faster.
        """
        spec, compute = case.spec(), self.compute(case)
        pipeline = spec.pipeline(case)
        if isinstance(self.ground.rates(case).links, Absent):
            return compute.step_s
        if pipeline is None:
            return self._overlapped(case, compute).step_s
        axes = spec.mesh(case)
        middle = spec.stage_transfers(case, pipeline.stages // 2)
        inside_s = pipeline.stages_per_rank * sum(self._transfer_s(each, axes, case) for each in middle.each)
        busy_s = compute.step_s + inside_s
        return busy_s * (1 + _bubble_ratio(pipeline))

    def _overlapped(self, case: Case, compute: ComputeTime, corner: Corner = "value") -> StepTime:
        """Return the step of a strategy without stages. corner: of the links."""
        spec = case.spec()
        axes = spec.mesh(case)
        timed = [(each, self._transfer_s(each, axes, case, corner)) for each in spec.transfers(case)]
        return step_of_times(compute, timed, hiding=self.ground.rates(case).hiding.at(corner))

    def _transfer_s(self, transfer: Transfer, axes: Mapping[str, int], case: Case, corner: Corner = "value") -> float:
        """Return the time of a transfer; the times of a byte and of a call are computed once for each kind of group."""
        axis = transfer_axis(transfer, axes)
        key = (transfer.collective, axis, corner)
        if key not in self._lines:
            self._lines[key] = self._line(transfer.collective, axis, case, corner)
        call_s, byte_s = self._lines[key]
        return transfer.calls * call_s + transfer.payload_bytes * byte_s

    def _line(self, collective: Collective, axis: MeshAxis, case: Case, corner: Corner) -> tuple[float, float]:
        links = self.ground.rates(case).links
        assert not isinstance(links, Absent), "without links nothing is sent"
        interconnect = links[corner]
        call_s = axis_time_s(collective, 0, axis, interconnect, case.backend)
        large = 10**9
        return call_s, (axis_time_s(collective, large, axis, interconnect, case.backend) - call_s) / large

    def candidate(self, case: Case) -> Candidate | Absent:
        """Return the candidate of a setup that fits, or why no step is predicted."""
        key = _key(case)
        if key not in self._candidates:
            self._candidates[key] = self._candidate(case)
        return self._candidates[key]

    def _candidate(self, case: Case) -> Candidate | Absent:
        memory, moved_bytes = self.ground.rates(case).memory, optimizer_bytes(case)
        assert not isinstance(memory, Absent), "a ground has the memory's rate"
        if isinstance(moved_bytes, Absent):
            return moved_bytes
        # On the rank with the largest update.
        optimizer_s = {corner: moved_bytes / memory.at(corner) for corner in CORNERS}
        compute = self.compute(case)
        step = self._step(case, compute)
        if isinstance(step, Absent):
            return step
        step = replace(step, compute=replace(step.compute, optimizer_s=optimizer_s["value"]))
        self.predicted_count += 1
        exposed_s, levels = self._by_level(case, step)
        recomputed_s = compute.recomputed_s
        parts_s = {COMPUTING: compute.step_s - recomputed_s, RECOMPUTING: recomputed_s, BUBBLE: step.bubble_s}
        parts_s[OPTIMIZER] = optimizer_s["value"]
        parts_s |= exposed_s
        return Candidate(
            case=case,
            memory=self.memory(case),
            step=step,
            parts_s={name: part_s for name, part_s in parts_s.items() if part_s > 0},
            levels=levels,
            corners_s={
                pair: self._at(case, step, computing, links) + optimizer_s[computing]
                for pair, (computing, links) in RATE_PAIRS.items()
            },
        )

    def _step(self, case: Case, compute: ComputeTime) -> StepTime | Absent:
        if is_fp8(case):
            return Absent(reason="no rate is assumed for fp8 products")
        spec, links = case.spec(), self.ground.rates(case).links
        if isinstance(links, Absent):
            return step_of(case, spec, compute=compute, interconnect=links)
        if spec.pipeline(case) is not None:
            return step_of(case, spec, compute=compute, interconnect=links["value"])
        if (missing := missing_link(spec.transfers(case), spec.mesh(case), links["value"])) is not None:
            return missing
        return self._overlapped(case, compute)

    def _by_level(self, case: Case, step: StepTime) -> tuple[dict[str, float], dict[str, str]]:
        """Return exposed communication by the outermost level that it crosses, and this level for each axis.

        Transfers inside a pipeline's stages are fully exposed, and count again in the bubble. The rest is divided in
        proportion to the time on each level.
        """
        links, spec = self.ground.rates(case).links, case.spec()
        if isinstance(links, Absent):
            return {}, {}
        interconnect = links["value"]
        axes, pipeline = spec.mesh(case), spec.pipeline(case)
        levels: dict[str, str] = {}
        all_s: dict[str, float] = {}
        for transfer in spec.transfers(case):
            if crossed := interconnect.crossed(transfer_axis(transfer, axes)):
                levels[transfer.axis] = crossed[-1].name
                all_s[crossed[-1].name] = all_s.get(crossed[-1].name, 0.0) + self._transfer_s(transfer, axes, case)
        exposed_s, left_s = dict.fromkeys(all_s, 0.0), step.exposed_s
        if pipeline is not None:
            for transfer in spec.stage_transfers(case, pipeline.stages // 2).each:
                own_s = pipeline.stages_per_rank * self._transfer_s(transfer, axes, case)
                name = levels[transfer.axis]
                all_s[name] = max(0.0, all_s[name] - own_s)
                inside_s = min(left_s, own_s * (1 + _bubble_ratio(pipeline)))
                exposed_s[name] += inside_s
                left_s -= inside_s
        total_s = sum(all_s.values())
        for name, level_s in all_s.items():
            exposed_s[name] += left_s * level_s / total_s if total_s else left_s / len(all_s)
        return exposed_s, levels

    def _at(self, case: Case, step: StepTime, computing: Corner, links: Corner) -> float:
        """Return the step, without its optimizer, with computing and links at the rates of these corners.

        A pipeline's bubble is assumed to grow in proportion to computing, and its exposed communication to the time of
        its transfers. Other strategies are predicted again, because slower links may expose hidden communication.
        """
        compute = self.compute(case, computing)
        if isinstance(self.ground.rates(case).links, Absent):
            return compute.step_s
        if case.spec().pipeline(case) is None:
            return self._overlapped(case, compute, links).step_s
        usual_s = step.compute.forward_s + step.compute.backward_s
        axes, transfers = case.spec().mesh(case), case.spec().transfers(case)
        sent_s = {
            corner: sum(self._transfer_s(each, axes, case, corner) for each in transfers) for corner in ("value", links)
        }
        slower = sent_s[links] / sent_s["value"] if sent_s["value"] else 1.0
        return compute.step_s + step.bubble_s * compute.step_s / usual_s + step.exposed_s * slower


def _bubble_ratio(pipeline: Pipeline) -> float:
    """Return the bubble of equal stages as a share of a rank's work; 0 if halves of backward may fill it."""
    if pipeline.schedule in HALVED_BACKWARD:
        return 0.0
    return (pipeline.ranks - 1) / (pipeline.microbatches * pipeline.stages_per_rank)


def _fewer_microbatches(case: Case) -> Case | None:
    """Return the case with just enough microbatches of the same size to fill the pipeline; None if it has no more.

    It holds no more than the case: equally many microbatches are in flight, and fewer wait in buffers. It is far faster
    to predict, because memory is followed action by action.
    """
    pipeline = case.spec().pipeline(case)
    if pipeline is None:
        return None
    enough = pipeline.ranks * min(2, pipeline.stages_per_rank)
    if pipeline.microbatches < 2 * enough or pipeline.microbatches % enough:
        return None
    batch = case.shape.batch * enough // pipeline.microbatches
    options = {**case.options, MICROBATCHES.name: enough}
    return replace(case, model=replace(case.shape, batch=batch), options=options)


def _key(case: Case) -> str:
    return f"{case.strategy} {case.shape.batch} {sorted(case.options.items())}"
