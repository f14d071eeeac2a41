"""Cases of eight strategies for a box of nodes, how long their blocks sleep, and how right predictions of them are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from bench.analysis.prediction.forecast import recomputed_of, work_of
from bench.analysis.prediction.scoring.score import Spread, kendall, spread_of
from bench.case import Case, check, find_spec, parse_options
from tests.bench.made.examples import make_case
from tests.slow.ranks.levels_in_box import RANKS_PER_NODE
from workloads.cost_models.absent import Absent
from workloads.cost_models.roofline import BACKWARD_ATTENTION, BACKWARD_PRODUCTS
from workloads.cost_models.shape import Shape
from workloads.options import microbatch_count

PRODUCTS = 8e8
"""FLOP/s of a rank. So slow that two cores compute as much for eight ranks in a small part of the time."""
LAYERS = 8
SHAPE = Shape(layers=LAYERS, width=192, heads=8, kv_heads=8, mlp_width=384, vocabulary=64, sequence=16, batch=16)
WHOLE_MODEL: dict[str, object] = {"bucket_mb": 25}
OPTIONS: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "ddp": (WHOLE_MODEL, {"bucket_mb": 1.45}),
    "hsdp": ({}, {"accumulate": 2}),
    "tensor_parallel": ({}, {"sequence_parallel": "true"}),
    "one_f_one_b": ({"microbatches": 8}, {"microbatches": 16}),
    "interleaved": ({"microbatches": 8}, {"microbatches": 16}),
    "ring_attention": (WHOLE_MODEL, WHOLE_MODEL | {"overlap": "false"}),
    "ulysses": (WHOLE_MODEL, WHOLE_MODEL | {"checkpoint": "full"}),
    "three_d": (WHOLE_MODEL | {"microbatches": 4}, WHOLE_MODEL | {"microbatches": 8}),
}
"""Options of both predicted cases of a strategy. The case that calibrates has the first, and half the batch."""
AT_ONCE: dict[str, object] = {"clip": 0, "workers": 0}
"""Clipping sums single numbers, which do not divide among ranks; a loader's processes would take turns with ranks."""


def make(strategy: str, nodes: int, options: Mapping[str, object], *, is_calibrating: bool = False) -> Case:
    """A case on all ranks of a box. Interleaved has two blocks or more for each rank.

    is_calibrating: with half the batch, and a step under the profiler, which shows how much is hidden.
    """
    ranks = RANKS_PER_NODE * nodes
    layers = max(LAYERS, 2 * ranks) if strategy == "interleaved" else LAYERS
    words = [f"{name}={value}" for name, value in (AT_ONCE | dict(options)).items()]
    return check(
        make_case(
            strategy,
            ranks,
            model=replace(SHAPE, layers=layers, batch=SHAPE.batch // (1 + is_calibrating)),
            nodes=nodes,
            options=parse_options(find_spec(strategy), words),
            trials=1,
            steps=3,
            warm_up=2,
            trace_steps=int(is_calibrating),
        )
    )


def calibrating(nodes: int) -> list[Case]:
    """One case of each strategy."""
    return [make(strategy, nodes, first, is_calibrating=True) for strategy, (first, _) in OPTIONS.items()]


def predicted_cases(nodes: int) -> list[Case]:
    """Two other cases of each strategy."""
    return [make(strategy, nodes, options) for strategy, both in OPTIONS.items() for options in both]


def words_of(case: Case) -> str:
    """The options that distinguish the case from the strategy's other."""
    first, second = OPTIONS[case.strategy]
    names = {name for name in {**first, **second} if first.get(name) != second.get(name)}
    return ", ".join(f"{name}={str(case.options[name]).lower()}" for name in sorted(names))


def block_sleeps_s(case: Case) -> tuple[float, float]:
    """Forward and backward of one block for one microbatch, at `PRODUCTS`; the head takes no time."""
    work, pipeline = work_of(case), case.spec().pipeline(case)
    blocks = case.shape.layers / (1 if pipeline is None else pipeline.ranks)
    share = PRODUCTS * case.ranks * blocks * microbatch_count(case)
    products_s = sum(product.flops for product in work.products) / share
    attention_s = work.attention.flops / share
    again = recomputed_of(case)
    backward_s = (BACKWARD_PRODUCTS + again.products) * products_s
    backward_s += (BACKWARD_ATTENTION + again.attention) * attention_s
    return products_s + attention_s, backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """An axis's transfers of a step, alone. level: the outermost that the axis crosses. measured_s: time after time."""

    axis: str
    level: str
    predicted_s: float
    measured_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median of measured over predicted."""
        return median(self.measured_s) / self.predicted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A case that was predicted, then run. box: in words. predicted_bytes, counted_bytes: a rank's in a step."""

    box: str
    case: Case
    predicted_bytes: int
    counted_bytes: int
    are_bytes_equal: bool
    replays: tuple[Replay, ...]
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """(predicted - measured) / measured step."""
        return self.predicted_s / self.measured_s - 1


def tau(scored: Sequence[Scored]) -> float | Absent:
    """How well predictions order these cases."""
    return kendall([each.predicted_s for each in scored], [each.measured_s for each in scored])


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Several cases. within: replays across nodes within `limit` of the prediction, of how many; error: of the step."""

    cases: int
    equal_bytes: int
    within: int
    replays: int
    error: Spread
    tau: float | Absent


def together(scored: Sequence[Scored], *, limit: float, level: str = "cluster") -> Together:
    """Count and order the cases; replays of one level only."""
    ratios = [replay.ratio for each in scored for replay in each.replays if replay.level == level]
    return Together(
        cases=len(scored),
        equal_bytes=sum(each.are_bytes_equal for each in scored),
        within=sum(abs(ratio - 1) <= limit for ratio in ratios),
        replays=len(ratios),
        error=spread_of([each.error for each in scored]),
        tau=tau(scored),
    )


def grouped(scored: Iterable[Scored], by: str) -> dict[str, list[Scored]]:
    """The cases by "strategy" or "box", in order."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for each in scored:
        groups[each.case.strategy if by == "strategy" else each.box].append(each)
    return dict(groups)
