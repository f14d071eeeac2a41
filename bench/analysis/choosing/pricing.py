"""Prices of setups: memory and step by the cost models, and a cheap bound that says in which order to ask for them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from bench.analysis.choosing.ground import (
    NOT_IN_STATES,
    OWN_ERROR,
    Corner,
    Ground,
    MemoryNeed,
    memory_need,
    states_bytes,
)
from bench.analysis.prediction.forecast import optimizer_bytes
from bench.case import Case
from workloads.cost_models.absent import Absent
from workloads.cost_models.interconnect import Interconnect, MeshAxis, axis_time_s, transfer_axis
from workloads.cost_models.schedules import HALVED_BACKWARD, Pipeline
from workloads.cost_models.step_time import ComputeTime, StepTime, compute_time, step_of_times
from workloads.cost_models.terms import Collective, Transfer
from workloads.options import MICROBATCHES, rerun_ratio
from workloads.pipeline_parallel.expected_step import missing_link, step_of

COMPUTING, RECOMPUTING, BUBBLE, OPTIMIZER = "computing", "recomputing", "bubble", "optimizer"
"""Parts of a step that are not communication; the others have the name of the level that is crossed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A setup that fits, with its predicted step.

    parts_s: of the step; exposed communication by the outermost level of links that it crosses.
    levels: the outermost level that each axis of the mesh crosses.
    corners_s: the step where the machine computes and sends at the rates of a corner.
    """

    case: Case
    memory: MemoryNeed
    step: StepTime
    parts_s: Mapping[str, float]
    levels: Mapping[str, str]
    corners_s: Mapping[Corner, float]

    @property
    def step_s(self) -> float:
        """The predicted step."""
        return self.step.step_s

    @property
    def interval_s(self) -> tuple[float, float]:
        """The step at the fastest and at the slowest corner, with the setup's own error."""
        return min(self.corners_s.values()) * (1 - OWN_ERROR), max(self.corners_s.values()) * (1 + OWN_ERROR)

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all ranks."""
        return self.case.shape.tokens / self.step_s

    @property
    def limit(self) -> tuple[str, float]:
        """What limits the step, with its share: the largest part but computing, or computing where all are small."""
        losses = {name: part_s / self.step_s for name, part_s in self.parts_s.items() if name != COMPUTING}
        name = max(losses, key=losses.__getitem__, default=COMPUTING)
        if losses.get(name, 0.0) < SMALL_LOSS:
            return COMPUTING, self.parts_s[COMPUTING] / self.step_s
        return name, losses[name]


SMALL_LOSS = 0.03
"""A part of the step that is no more does not limit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times faster a setup is than another. low, high: over the rates at which both may run."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether one of the two is faster at all rates."""
        return self.low > 1 or self.high < 1


def speed_ratio(faster: Candidate, slower: Candidate) -> Ratio:
    """Return how many times faster a setup is than another, both on the same machine.

    At each corner both have the same rates, so that an error of these counts only as far as the two differ in what they
    do: of two that compute alike it cancels. What is left is each setup's own error, which is not shared.
    """
    at = [slower.corners_s[corner] / faster.corners_s[corner] for corner in faster.corners_s]
    own = (1 + OWN_ERROR) / (1 - OWN_ERROR) if faster.case != slower.case else 1.0
    return Ratio(value=slower.step_s / faster.step_s, low=min(at) / own, high=max(at) * own)


@dataclass(slots=True, kw_only=True)
class Pricing:
    """Prices setups on one ground, each at most once. predicted_count: of steps that were worked out in full."""

    ground: Ground
    predicted_count: int = 0
    _memory: dict[str, MemoryNeed] = field(default_factory=dict)
    _states: dict[Hashable, int] = field(default_factory=dict)
    _candidates: dict[str, Candidate | Absent] = field(default_factory=dict)
    _lines: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    _computes: dict[Hashable, ComputeTime] = field(default_factory=dict)

    # Memory.

    def memory(self, case: Case) -> MemoryNeed:
        """Return the memory of the rank that holds most; only the states where these do not fit."""
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

    # A step.

    def compute(self, case: Case) -> ComputeTime:
        """Return what a mean rank computes."""
        key = (case.strategy, rerun_ratio(case), case.shape)
        if key not in self._computes:
            self._computes[key] = compute_time(
                case.shape,
                case.spec().training_ranks(case),
                self.ground.flops_per_second,
                recomputed_ratio=rerun_ratio(case),
            )
        return self._computes[key]

    def bound_s(self, case: Case) -> float:
        """Return about the least that the step can take: computing, the schedule's bubble, and what runs inside stages.

        Cheap: nothing is simulated. It orders setups, and ends the search where no other can be faster.
        """
        spec, compute = case.spec(), self.compute(case)
        pipeline = spec.pipeline(case)
        if isinstance(self.ground.interconnect, Absent):
            return compute.step_s
        if pipeline is None:
            return self._overlapped(case, compute).step_s
        axes = spec.mesh(case)
        middle = spec.stage_transfers(case, pipeline.stages // 2)
        inside_s = pipeline.stages_per_rank * sum(self._transfer_s(each, axes, case) for each in middle.each)
        busy_s = compute.step_s + inside_s
        return busy_s * (1 + _bubble_ratio(pipeline))

    def _overlapped(self, case: Case, compute: ComputeTime, links: float = 1.0) -> StepTime:
        """Return the step of a strategy without stages. links: their bandwidth, as a share of what is taken."""
        spec = case.spec()
        axes = spec.mesh(case)
        transfers = spec.transfers(case)
        return step_of_times(compute, [(each, self._transfer_s(each, axes, case, links)) for each in transfers])

    def _transfer_s(self, transfer: Transfer, axes: Mapping[str, int], case: Case, links: float = 1.0) -> float:
        """Return the time of a transfer; those of a byte and of a call are worked out once for each kind of group."""
        axis = transfer_axis(transfer, axes)
        key = (transfer.collective, axis)
        if key not in self._lines:
            self._lines[key] = self._line(transfer.collective, axis, case)
        call_s, byte_s = self._lines[key]
        return transfer.calls * call_s + transfer.payload_bytes * byte_s / links

    def _line(self, collective: Collective, axis: MeshAxis, case: Case) -> tuple[float, float]:
        interconnect = self.ground.interconnect
        assert isinstance(interconnect, Interconnect), "without links nothing is sent"
        call_s = axis_time_s(collective, 0, axis, interconnect, case.backend)
        large = 10**9
        return call_s, (axis_time_s(collective, large, axis, interconnect, case.backend) - call_s) / large

    def candidate(self, case: Case) -> Candidate | Absent:
        """Return a setup that fits with its step, or why no step is predicted."""
        key = _key(case)
        if key not in self._candidates:
            self._candidates[key] = self._candidate(case)
        return self._candidates[key]

    def _candidate(self, case: Case) -> Candidate | Absent:
        self.predicted_count += 1
        compute = self.compute(case)
        step = self._step(case, compute)
        if isinstance(step, Absent):
            return step
        optimizer_s = self._optimizer_s(case)
        step = replace(step, compute=replace(step.compute, optimizer_s=optimizer_s))
        exposed_s, levels = self._by_level(case, step)
        recomputed_s = compute.backward_s - 2 * compute.forward_s
        parts_s = {COMPUTING: compute.step_s - recomputed_s, RECOMPUTING: recomputed_s, BUBBLE: step.bubble_s}
        parts_s[OPTIMIZER] = optimizer_s
        parts_s |= exposed_s
        return Candidate(
            case=case,
            memory=self.memory(case),
            step=step,
            parts_s={name: part_s for name, part_s in parts_s.items() if part_s > 0},
            levels=levels,
            corners_s={corner: self._at(case, step, *rates) for corner, rates in self.ground.corners.items()},
        )

    def _optimizer_s(self, case: Case) -> float:
        """Return the time of the optimizer of the rank that updates most; 0 where the memory's rate is not known."""
        if self.ground.memory_bytes_per_second is None or isinstance(moved_bytes := optimizer_bytes(case), Absent):
            return 0.0
        return moved_bytes / self.ground.memory_bytes_per_second

    def _step(self, case: Case, compute: ComputeTime) -> StepTime | Absent:
        spec, interconnect = case.spec(), self.ground.interconnect
        if isinstance(interconnect, Absent) or spec.pipeline(case) is not None:
            return step_of(case, spec, compute=compute, interconnect=interconnect)
        if (missing := missing_link(spec.transfers(case), spec.mesh(case), interconnect)) is not None:
            return missing
        return self._overlapped(case, compute)

    def _by_level(self, case: Case, step: StepTime) -> tuple[dict[str, float], dict[str, str]]:
        """Return exposed communication by the outermost level that it crosses, and that level by axis.

        What runs inside the actions of a pipeline's stages is exposed in full, and again in the bubble. The rest is
        shared in proportion to the time on each level.
        """
        interconnect, spec = self.ground.interconnect, case.spec()
        if isinstance(interconnect, Absent):
            return {}, {}
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

    def _at(self, case: Case, step: StepTime, computing: float, links: float) -> float:
        """Return the step at other rates, as shares of those that were taken.

        A pipeline's exposed communication is taken to grow as its links slow down; others are predicted again, since
        slower links may expose what was hidden.
        """
        compute, spread = step.compute, self.ground.memory_spread
        optimizer_s = compute.optimizer_s / (spread.low if computing < 1 else spread.high)
        if case.spec().pipeline(case) is not None or isinstance(self.ground.interconnect, Absent):
            computing_s = compute.forward_s + compute.backward_s + step.bubble_s
            return computing_s / computing + step.exposed_s / links + optimizer_s
        slower = ComputeTime(forward_s=compute.forward_s / computing, backward_s=compute.backward_s / computing)
        return self._overlapped(case, slower, links).step_s + optimizer_s


def _bubble_ratio(pipeline: Pipeline) -> float:
    """Return the bubble of equal stages as a share of what a rank does; 0 where halves of backward may fill it."""
    if pipeline.schedule in HALVED_BACKWARD:
        return 0.0
    return (pipeline.ranks - 1) / (pipeline.microbatches * pipeline.stages_per_rank)


def _fewer_microbatches(case: Case) -> Case | None:
    """Return the case with only as many microbatches of the same size as fill a pipeline, or None if it has no more.

    It holds no more than the case: as many microbatches are in flight, and fewer wait in buffers. It is far quicker to
    predict, as its memory is followed action by action.
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
