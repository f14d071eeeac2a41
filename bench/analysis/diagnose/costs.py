"""Computes the costs of a run's step: the share of each kind of cost, with the evidence.

`bench.results.step_parts` divides the step by activity; this module assigns the parts to causes. Waiting in collectives
is due to a straggler if a rank stands out, and to imbalance otherwise. A bubble is due to the schedule, unequal stages,
the link and the hosts. Computing includes recomputation to save memory and, on an oversubscribed CPU, waiting for
cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from bench.analysis.diagnose.laws import (
    NEAR_CEILING,
    exposed_ratio,
    law_bus_bandwidths,
    memory_in_use,
    missing_links,
    peak_bytes,
    recomputed_share,
    stage_cuts,
    stage_times,
)
from bench.analysis.diagnose.observed import CostFinding, CostKind, NodeLoad, Observed, StepShare
from bench.errors import plural
from bench.results.estimate import Estimate, by_labels, estimate_share, of_metric
from bench.results.pipeline import CLEARLY_LONGER, CORE, MESSAGE, UNEVEN
from bench.results.step_parts import MeasuredStep, StepAccount, step_account
from collectors.metrics import results
from collectors.metrics.metric import Metric
from workloads.cost_models.schedules import Pipeline, actions
from workloads.pipeline_parallel.simulator import mean_stage, simulate

LEADING_RATIO = 0.6
"""If trials are too few to name a straggler, a rank with at least this share of the lateness is suspected."""
SLOW_LINK = 2.0
"""A collective is called slow if it takes this many times the predicted time; on a quiet link the model is within
10 %."""
HELD_RATIO = 0.1
"""Tasks that wait for memory or a CPU, and a throttled GPU, are evidence from this share of the time."""

_BUBBLE_OF: dict[str, CostKind] = {
    "schedule": "bubble",
    "imbalance": "imbalance",
    "transfer": "exposed_communication",
    MESSAGE: "exposed_communication",
    UNEVEN: "host",
    CORE: "host",
    "unexplained": "host",
}
_TAKEN_FROM = {
    "compute": ("compute", "idle"),
    "copy": ("copies", "idle", "compute"),
    "data loading": ("data", "idle", "compute"),
}
"""The parts of the step that contain a straggler's activity."""


def costs_of(observed: Observed) -> tuple[list[CostFinding], StepAccount | str]:
    """Return the findings of each kind, and the step's account or why there is none."""
    account = step_account(MeasuredStep(case=observed.case, estimates=observed.estimates))
    if isinstance(account, str):
        return [], account
    divided = account.divide(account.absent)
    parts: _Parts = {
        name: [min(1.0, max(0.0, value / step_s)) for value, step_s in zip(seconds, account.steps_s, strict=True)]
        for name, seconds in divided.items()
    }
    if not account.traces:  # Without a trace: only the data phase, and expectations.
        findings = [*_input(observed, parts), *_communication(observed, parts), *_bubbles(observed, None, 0.0)]
        unattributed = CostFinding(
            kind="unknown",
            share=_share(parts["unexplained"]),
            evidence=("unattributed time of a step without a trace",),
        )
        return [*findings, *_memory(observed, parts), unattributed], account
    held_up = list(_straggler(observed, parts))  # Subtracts its time from the parts.
    memory = list(_memory(observed, parts))
    schedule_ratio = _take_bubble(observed, parts)
    findings = [
        *held_up,
        *memory,
        *_waiting(observed, parts),
        *_bubbles(observed, parts, schedule_ratio),
        *_input(observed, parts),
        *_host(observed, parts),
        *_communication(observed, parts),
        *_compute(observed, parts),
    ]
    unattributed = CostFinding(
        kind="unknown", share=_share(parts["unexplained"]), evidence=("time of an untraced step",)
    )
    return [*findings, unattributed], account


_Parts = dict[str, list[float]]


def _share(ratios: Sequence[float]) -> StepShare:
    estimate = estimate_share(
        results.RUN_TRACED_RATIO, [min(1.0, max(0.0, ratio)) for ratio in ratios], part="of the step"
    )
    return StepShare(value=estimate.median, low=estimate.low, high=estimate.high, trials=estimate.trials)


def _sum(*ratios: Sequence[float]) -> list[float]:
    return [sum(of_trial) for of_trial in zip(*ratios, strict=True)]


def _estimate_of(observed: Observed, metric: Metric, **labels: str) -> Estimate | None:
    """Return the estimate of the metric with these labels; None if the run has none."""
    return next(
        (estimate for estimate in of_metric(observed.estimates, metric) if labels.items() <= estimate.labels.items()),
        None,
    )


# A straggler, and waiting


def _straggler(observed: Observed, parts: _Parts) -> Iterator[CostFinding]:
    """Yield the rank that holds the others up, and subtract its share from waiting and from its own activity."""
    named = _estimate_of(observed, results.RUN_STRAGGLER_RATIO)
    doubt = None
    if named is None:
        suspect = _suspect(observed)
        if suspect is None:
            return
        named, doubt = suspect
    rank, cause = named.labels["rank"], named.labels.get("cause")
    trials = len(parts["compute"])
    ratios = list(named.trials) if len(named.trials) == trials else [named.median] * trials
    for trial, ratio in enumerate(ratios):
        for part in ("waiting", *_TAKEN_FROM.get(cause or "", ("idle", "compute"))):
            if part in parts:
                moved = min(ratio, parts[part][trial])
                parts[part][trial] -= moved
                ratio -= moved
    where = f" on {observed.rank_hosts[int(rank)]}" if int(rank) in observed.rank_hosts else ""
    doing = f", by {cause}" if cause else ""
    evidence = [f"rank {rank}{where} holds the others up{doing}: {100 * named.median:.1f} % of the traced time"]
    if (last := _estimate_of(observed, results.RUN_LAST_RATIO, rank=rank)) is not None:
        evidence.append(f"rank {rank} arrives last at {100 * last.median:.0f} % of its collectives")
    evidence += [note for note in observed.notes if note.startswith(f"rank {rank}") and "holds the others up" in note]
    evidence += _held_back(observed.nodes)
    yield CostFinding(
        kind="straggler", share=_share(ratios), expected=0.0, evidence=tuple(evidence), levers=(), doubt=doubt
    )


def _suspect(observed: Observed) -> tuple[Estimate, str] | None:
    """Return the rank with most of the lateness if trials are too few to name a straggler, and the doubt."""
    late = of_metric(observed.estimates, results.RUN_HELD_UP_RATIO)
    total = sum(estimate.median for estimate in late)
    if len(late) < 2 or not total:
        return None
    worst = max(late, key=lambda estimate: estimate.median)
    if worst.median < LEADING_RATIO * total:
        return None
    verdict = next((note for note in observed.notes if note.startswith(("no straggler:", "straggler: likely "))), None)
    rank = worst.labels["rank"]
    if verdict is not None and verdict.startswith(
        (f"straggler: likely rank {rank} ", f"straggler: likely rank {rank},")
    ):
        return worst, verdict.removeprefix("straggler: ")
    doubt = f"rank {rank} has {100 * (worst.median / total):.0f} % of the lateness, which may be chance"
    return worst, doubt if verdict is None else f"{doubt} ({verdict})"


def _waiting(observed: Observed, parts: _Parts) -> Iterator[CostFinding]:
    """Yield the waiting for other ranks if none of them stands out; the imbalance of stages is separate."""
    if observed.case.ranks == 1 or "waiting" not in parts:
        return
    evidence = []
    if (ratio := _estimate_of(observed, results.RUN_WAITING_RATIO)) is not None:
        evidence.append(f"{100 * ratio.median:.1f} % of the time in collectives is waiting for the last rank")
    late = of_metric(observed.estimates, results.RUN_HELD_UP_RATIO)
    if late:
        worst = max(late, key=lambda estimate: estimate.median)
        evidence.append(
            f"no rank is an outlier: the latest, rank {worst.labels['rank']}, costs {100 * worst.median:.1f} %"
        )
    pairs = by_labels(observed.estimates, results.RUN_ATTENTION_PAIRS)
    for account in ("counted", "expected"):
        least, most = pairs.get(("least", account)), pairs.get(("most", account))
        if least is not None and most is not None and least.median > 0:
            evidence.append(
                f"the busiest rank attends to {most.median / least.median:.2f} times the pairs of the least busy rank"
                f" ({account})"
            )
    if observed.crowding is not None and observed.case.device == "cpu" and observed.crowding > 1:
        evidence.append("ranks that share cores arrive at different times by chance")
    yield CostFinding(
        kind="imbalance",
        subject="ranks",
        share=_share(parts["waiting"]),
        expected=0.0,
        evidence=tuple(evidence),
        doubt="the uneven rank or microbatch is unknown; `observatory analyse stragglers` shows each rank",
    )


# The bubble of a pipeline


def _take_bubble(observed: Observed, parts: _Parts) -> float:
    """Assign the bubble's parts to their causes; return the schedule's share of the step."""
    if "bubble" not in parts or not any(parts["bubble"]):
        return 0.0
    bubble = parts.pop("bubble")
    causes = by_labels(observed.estimates, results.RUN_BUBBLE_PART_RATIO)
    positive = {part: max(0.0, causes[part,].median) for part in _BUBBLE_OF if (part,) in causes} or {"schedule": 1.0}
    total = sum(positive.values()) or 1.0
    for part, ratio in positive.items():
        name = f"bubble: {_BUBBLE_OF[part]}"
        more = [bubble_ratio * ratio / total for bubble_ratio in bubble]
        parts[name] = _sum(parts[name], more) if name in parts else more
    return median(bubble) * positive.get("schedule", 0.0) / total


def _bubbles(observed: Observed, parts: _Parts | None, schedule_ratio: float) -> Iterator[CostFinding]:
    """Yield the schedule's bubble, and the imbalance of stages with the speed-up of equal stages."""
    pipeline = observed.case.spec().pipeline(observed.case)
    if pipeline is None:
        return
    measured, expected = (_estimate_of(observed, results.RUN_BUBBLE_RATIO, account=account) for account in _ACCOUNTS)
    bubble = [] if measured is None else [f"the measured bubble is {100 * measured.median:.1f} % of the ranks' time"]
    if expected is not None:
        bubble.append(f"in simulation with the measured stages it is {100 * expected.median:.1f} %")
    words = f"{pipeline.microbatches} microbatches on {pipeline.stages} stages, schedule {pipeline.schedule}"
    bubble_ratios = None if parts is None else parts.get("bubble: bubble")
    ideal = dict.fromkeys([(action.stage, action.kind) for rank in actions(pipeline) for action in rank], 1.0)
    ideal_ratio = simulate(actions(pipeline), ideal).bubble_ratio
    yield CostFinding(
        kind="bubble",
        share=None if bubble_ratios is None else _share(bubble_ratios),
        expected=schedule_ratio if bubble_ratios is not None else None,
        why_not_expected=None if bubble_ratios is not None else "stages were not timed",
        evidence=(*bubble, f"{words}: {100 * ideal_ratio:.1f} % with equal stages"),
    )
    uneven = None if parts is None else parts.get("bubble: imbalance")
    if uneven is not None:
        yield CostFinding(
            kind="imbalance",
            subject="stages",
            share=_share(uneven),
            expected=0.0,
            evidence=tuple(_stages(observed, pipeline)),
        )


_ACCOUNTS = ("measured", "expected")


def _stages(observed: Observed, pipeline: Pipeline) -> Iterator[str]:
    """Yield the slowest stage, and the gain from another cut of the blocks."""
    times = stage_times(observed, pipeline)
    if times is None:
        return
    stages_s = [sum(time_s for (of, _), time_s in times.items() if of == stage) for stage in range(pipeline.stages)]
    slowest = max(range(pipeline.stages), key=stages_s.__getitem__)
    if stages_s[slowest] >= (1 + CLEARLY_LONGER) * fmean(stages_s):
        yield (
            f"stage {slowest} on pipeline rank {pipeline.rank_of(slowest)} is the slowest:"
            f" {1e3 * stages_s[slowest]:,.4g} ms per microbatch, {1e3 * fmean(stages_s):,.4g} ms for a mean stage"
        )
    simulated = simulate(actions(pipeline), times)
    speed_up = sum(simulated.busy_s) / simulated.makespan_s
    now = f"in simulation, its {pipeline.ranks} ranks are {speed_up:.1f} times as fast as one"
    cuts = stage_cuts(observed)
    if cuts is None:
        equal = simulate(actions(pipeline), mean_stage(times))
        yield f"{now}, and with equal stages {sum(simulated.busy_s) / equal.makespan_s:.1f} times"
    elif cuts.is_worth_it:
        best = sum(cuts.best.busy_s) / cuts.best.makespan_s
        yield f"{now}, and {best:.1f} times with stages of {_listed(cuts.best_blocks)} blocks"
    else:
        yield f"{now}, and no other cut of its blocks (now {_listed(cuts.blocks)}) is clearly faster"


def _listed(counts: Sequence[int]) -> str:
    *most, last = map(str, counts)
    return f"{', '.join(most)} and {last}"


# Input, memory, host


def _input(observed: Observed, parts: _Parts) -> Iterator[CostFinding]:
    if "data" not in parts:
        return
    evidence = []
    if (phase := _estimate_of(observed, results.RUN_PHASE_SECONDS, phase="data")) is not None:
        evidence.append(f"a step waits {1e3 * phase.median:,.4g} ms for its batch")
    waited, step = (
        _estimate_of(observed, results.RUN_DATA_WAIT_SECONDS),
        _estimate_of(observed, results.RUN_MEAN_STEP_SECONDS),
    )
    if waited is not None and step is not None:
        evidence.append(
            f"the host waits {1e3 * waited.median:,.4g} ms for a batch, {100 * (waited.median / step.median):.0f}"
            " % of a step"
        )
    yield CostFinding(kind="input", share=_share(parts["data"]), expected=0.0, evidence=tuple(evidence))


def _memory(observed: Observed, parts: _Parts) -> Iterator[CostFinding]:
    """Yield the cost of saving memory, and how full the memory is."""
    case, evidence = observed.case, []
    memory_parts: list[Sequence[float]] = []
    if (repeated := recomputed_share(case)) and "compute" in parts:
        recomputed = [repeated * estimate for estimate in parts["compute"]]
        parts["compute"] = [estimate - less for estimate, less in zip(parts["compute"], recomputed, strict=True)]
        memory_parts.append(recomputed)
        evidence.append(
            f"checkpoint={case.options['checkpoint']} repeats {100 * repeated:.0f} % of the computing, as the model"
            " predicts"
        )
    if case.options.get("offload") is True and "copies" in parts:
        memory_parts.append(parts.pop("copies"))
        evidence.append("offload=true copies states between host and device")
    in_use = memory_in_use(observed)
    if in_use is not None and (in_use >= NEAR_CEILING or memory_parts):
        whose = "a GPU's" if case.device == "cuda" else "a node's, of all its ranks"
        evidence.append(
            f"the peak is {(peak_bytes(observed) or 0) / 2**30:.3g} GiB a rank:"
            f" {100 * in_use:.0f} % of {(observed.device_bytes or 0) / 2**30:.3g} GiB, {whose}"
        )
    if observed.allocator is not None and observed.allocator.retries:
        evidence.append(
            f"the allocator of rank {observed.allocator.rank} returned its unused memory and retried"
            f" {plural(observed.allocator.retries, 'time')}, waiting for the device each time"
        )
    for node in observed.nodes:
        if (pressure := node.memory_pressure_ratio or 0) >= HELD_RATIO:
            evidence.append(f"tasks of {node.host} waited for memory {100 * pressure:.0f} % of the time")
        if node.swapped_bytes:
            evidence.append(f"{node.host} swapped {node.swapped_bytes / 2**20:,.0f} MiB")
    if evidence:
        share = _share(_sum(*memory_parts)) if memory_parts else None
        yield CostFinding(
            kind="memory",
            share=share,
            expected=None if share is None else share.value,
            why_not_expected="no model predicts the cost of retries and swapping" if share is None else None,
            evidence=tuple(evidence),
        )


def _host(observed: Observed, parts: _Parts) -> Iterator[CostFinding]:
    """Yield the time in which devices idle and, on an oversubscribed CPU, in which ranks wait for a core."""
    case, crowding = observed.case, observed.crowding
    evidence = [f"the device is idle for {100 * median(parts['idle']):.1f} % of the step"] if "idle" in parts else []
    host_parts = [parts[name] for name in ("idle", "bubble: host") if name in parts]
    if "bubble: host" in parts:
        evidence.append(
            f"host time between a pipeline's actions: {100 * median(parts['bubble: host']):.1f} % of the step"
        )
    if "copies" in parts and any(parts["copies"]):
        host_parts.append(parts["copies"])
        evidence.append(f"exposed copies: {100 * median(parts['copies']):.1f} % of the step")
    if case.device == "cpu" and crowding is not None and crowding > 1:
        # Each of the computing threads has a core for 1 / crowding of the time.
        queued = [ratio * (1 - 1 / crowding) for ratio in parts["compute"]]
        parts["compute"] = [ratio - queued_ratio for ratio, queued_ratio in zip(parts["compute"], queued, strict=True)]
        host_parts.append(queued)
        evidence.append(
            f"{case.ranks // case.nodes} ranks with {plural(case.threads, 'thread')} each"
            f" share {plural(observed.cores or 0, 'core')}"
            f" (oversubscribed): at least {100 * (1 - 1 / crowding):.0f} % of their computing time is waiting for"
            " a core"
        )
    for node in observed.nodes:
        if node.busy_ratio is not None:
            tasks = "" if node.load_tasks is None else f", with {node.load_tasks:.1f} tasks running or waiting"
            evidence.append(f"the CPUs of {node.host} are busy {100 * node.busy_ratio:.0f} % of the time{tasks}")
        if (pressure := node.cpu_pressure_ratio or 0) >= HELD_RATIO:
            evidence.append(f"tasks of {node.host} waited for a CPU {100 * pressure:.0f} % of the time")
    if host_parts:
        yield CostFinding(kind="host", share=_share(_sum(*host_parts)), expected=0.0, evidence=tuple(evidence))


def _held_back(nodes: Iterable[NodeLoad]) -> Iterator[str]:
    for node in nodes:
        for gpu, (ratio, reason) in node.held_ratios.items():
            if ratio >= HELD_RATIO:
                yield f"GPU {gpu} on {node.host} is throttled {100 * ratio:.0f} % of the time, by {reason}"


# Communication and computation


def _communication(observed: Observed, parts: _Parts) -> Iterator[CostFinding]:
    """Yield exposed transfers, and the exposed share that the cost model predicts."""
    case = observed.case
    if case.ranks == 1:
        return
    exposed = [parts[name] for name in ("exposed_communication", "bubble: exposed_communication") if name in parts]
    expected: float | None = None
    why = None
    if (missing := missing_links(observed)) is not None:
        why = missing
    elif (expected := exposed_ratio(observed)) is None:
        why = "no step was traced, so what may hide it is unknown"
    evidence = []
    whole = by_labels(observed.estimates, results.RUN_COMMUNICATION_SECONDS)
    for account, words in (("traced", "collectives run for"), ("expected", "on the probed links the model predicts")):
        if (estimate := whole.get((account,))) is not None:
            evidence.append(f"{words} {1e3 * estimate.median:,.4g} ms of a step")
    if (overlap := _estimate_of(observed, results.RUN_OVERLAP_RATIO)) is not None:
        evidence.append(f"computation hides {100 * overlap.median:.0f} % of them")
    evidence += slow_links(observed)
    if exposed or evidence or expected:
        yield CostFinding(
            kind="exposed_communication",
            share=_share(_sum(*exposed)) if exposed else None,
            expected=expected,
            why_not_expected=why,
            evidence=tuple(evidence),
        )


def slow_links(observed: Observed) -> Iterator[str]:
    """Yield each collective that is much slower than the probed link allows, and the slowest pair of ranks."""
    if isinstance(observed.interconnect, str) or missing_links(observed) is not None:
        return
    is_slow = False
    for name, expected in law_bus_bandwidths(observed.case, observed.interconnect).items():
        measured = _estimate_of(observed, results.RUN_TRACED_BUS_BANDWIDTH, collective=name)
        if measured is not None and expected >= SLOW_LINK * measured.median:
            is_slow = True
            yield (
                f"slow link: {name} reaches a bus bandwidth of {_rate(measured.median)}, but the probed link allows"
                f" {_rate(expected)}, {expected / measured.median:.1f} times as much"
            )
    pairs: Mapping[str, float] = observed.pair_bandwidths
    if is_slow and pairs:
        slowest = min(pairs, key=lambda pair: pairs[pair])
        middle = median(pairs.values())
        yield f"the slowest pair is ranks {slowest} with {_rate(pairs[slowest])}; the median pair has {_rate(middle)}"


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.3g} GB/s" if bytes_per_second >= 1e8 else f"{bytes_per_second / 1e6:.3g} MB/s"


def _compute(observed: Observed, parts: _Parts) -> Iterator[CostFinding]:
    """Yield the arithmetic. The expected share is its time at the measured ceiling."""
    share = _share(parts["compute"])
    mfu = _estimate_of(observed, results.RUN_MEASURED_MFU)
    sheet = _estimate_of(observed, results.RUN_MFU)
    evidence = [] if sheet is None else [f"MFU by the data sheet's peak: {100 * sheet.median:.1f} %"]
    if mfu is not None and share.value > 0:
        evidence += [
            f"MFU by the measured ceiling: {100 * mfu.median:.1f} %",
            f"while computing, it reaches {100 * min(1.0, mfu.median / share.value):.0f} % of the measured ceiling",
        ]
    finding = CostFinding(
        kind="compute",
        share=share,
        expected=None if mfu is None else mfu.median,
        evidence=(*evidence, *_held_back(observed.nodes)),
    )
    if mfu is None:
        finding = replace(finding, why_not_expected="no ceiling: `observatory run matmul` measures one")
    yield finding
