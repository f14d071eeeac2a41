"""A run's bubble beside what its schedule, its stages and the link explain of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import cast

from bench.judgement.delays import CORE, MESSAGE, UNEVEN
from bench.judgement.estimate import Estimate, estimate_part
from collectors.catalogue.pipeline import RUN_BUBBLE_PART_RATIO, RUN_BUBBLE_RATIO, RUN_STAGE_SECONDS
from workloads.laws.bubble import BubbleSplit, split_bubble
from workloads.laws.pipeline import Pipeline
from workloads.laws.schedules import ActionKind, actions
from workloads.laws.terms import NotCovered

PARTS = ("schedule", "imbalance", "transfer", UNEVEN, MESSAGE, CORE, "unexplained")
"""Of the measured bubble, in the order in which they add up to it. Runs of before the delays' parts have the others."""
_DECIMALS = 12
"""What stands further behind is rounding's, and no difference between trials."""
CLEARLY_LONGER = 0.05
"""Share by which a rank must compute longer than the mean rank to be called the bottleneck; less is noise."""


def bubble_parts(
    pipeline: Pipeline, found: Sequence[Estimate], transfer_s: float | NotCovered
) -> Iterator[Estimate | str]:
    """The expected bubble and the parts of the measured one, and notes: what is absent, which stage is the bottleneck.

    The parts are those of the run's own figures, so that these add up; each trial's parts give the intervals.
    found: the run's estimates, of which the measured bubble, the times of stages and the parts of `delay_parts` are
        read; that of messages is given anew where the transfer, which is in it, is known.
    transfer_s: of one boundary tensor between two ranks, or why nobody knows.
    """
    measured = [one for one in found if one.metric == RUN_BUBBLE_RATIO.name]
    times = {
        (int(one.labels["stage"]), cast(ActionKind, one.labels["action"])): one
        for one in found
        if one.metric == RUN_STAGE_SECONDS.name
    }
    if not measured:
        return
    untimed = sorted({(action.stage, action.kind) for rank in actions(pipeline) for action in rank} - times.keys())
    if untimed:
        stage, kind = untimed[0]
        yield f"the expected bubble is absent: no {kind} of stage {stage} took any time in the timed steps"
        return
    (bubble,) = measured
    whole = split_bubble(
        bubble.median, pipeline, {place: one.median for place, one in times.items()}, transfer_s=transfer_s
    )
    trials = [
        split_bubble(
            value, pipeline, {place: one.trials[number] for place, one in times.items()}, transfer_s=transfer_s
        )
        for number, value in enumerate(bubble.trials)
    ]
    expected = [_rounded(trial.expected_ratio) for trial in trials]
    yield estimate_part(RUN_BUBBLE_RATIO, expected, middle=_rounded(whole.expected_ratio), account="expected")
    delays = {
        one.labels["part"]: one
        for one in found
        if one.metric == RUN_BUBBLE_PART_RATIO.name and one.labels["part"] in (UNEVEN, MESSAGE, CORE)
    }
    of_whole = _with_delays(_parts(whole), {part: one.median for part, one in delays.items()})
    of_trials = [
        _with_delays(_parts(trial), {part: one.trials[number] for part, one in delays.items()})
        for number, trial in enumerate(trials)
    ]
    for part, middle in of_whole.items():
        if part not in (UNEVEN, CORE) and not (part == MESSAGE and isinstance(transfer_s, NotCovered)):
            values = [parts[part] for parts in of_trials]
            yield estimate_part(RUN_BUBBLE_PART_RATIO, values, middle=middle, part=part)
    if isinstance(whole.transfer_ratio, NotCovered):
        where = MESSAGE if MESSAGE in delays else "unexplained"
        yield f"the transfer's part of the bubble is absent, and is in {where}: {whole.transfer_ratio.reason}"
    yield from _bottleneck(pipeline, times)


def _parts(split: BubbleSplit) -> dict[str, float]:
    ratios = {
        "schedule": split.schedule_ratio,
        "imbalance": split.imbalance_ratio,
        "transfer": split.transfer_ratio,
        "unexplained": split.unexplained_ratio,
    }
    return {part: _rounded(ratio) for part, ratio in ratios.items() if not isinstance(ratio, NotCovered)}


def _with_delays(parts: Mapping[str, float], delays: Mapping[str, float]) -> dict[str, float]:
    """The parts with those of delays, which unexplained has in it without them; a message's has no transfer in it."""
    beyond = dict(delays)
    if MESSAGE in beyond:
        beyond[MESSAGE] -= parts.get("transfer", 0.0)
    unexplained = parts["unexplained"] - sum(beyond.values())
    return {**parts, **{part: _rounded(ratio) for part, ratio in beyond.items()}, "unexplained": _rounded(unexplained)}


def _rounded(ratio: float) -> float:
    return round(ratio, _DECIMALS) + 0.0  # Not -0.


def _bottleneck(pipeline: Pipeline, times: Mapping[tuple[int, ActionKind], Estimate]) -> Iterator[str]:
    """The rank that all others wait for, where one computes clearly longer than the mean rank."""
    stages_s = [sum(one.median for (of, _), one in times.items() if of == stage) for stage in range(pipeline.stages)]
    ranks_s = [sum(stages_s[stage] for stage in pipeline.stages_of(rank)) for rank in range(pipeline.ranks)]
    slowest = max(range(pipeline.ranks), key=ranks_s.__getitem__)
    if ranks_s[slowest] < (1 + CLEARLY_LONGER) * fmean(ranks_s):
        return
    stages = pipeline.stages_of(slowest)
    held = f"stage {stages[0]}" if len(stages) == 1 else f"stages {' and '.join(map(str, stages))}"
    yield (
        f"the bottleneck is {held}, on pipeline rank {slowest}: it computes {1e3 * ranks_s[slowest]:,.4g} ms for a"
        f" microbatch, a mean rank {1e3 * fmean(ranks_s):,.4g} ms"
    )
