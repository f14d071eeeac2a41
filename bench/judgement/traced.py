"""What the traced steps of one trial say, joined over its ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from collectors.catalogue import communication as metrics
from collectors.sample_log import Reading

PARTS = {
    "compute": metrics.COMPUTE_SECONDS,
    "communication": metrics.COMMUNICATION_SECONDS,
    "overlap": metrics.OVERLAP_SECONDS,
    "exposed_communication": metrics.EXPOSED_COMMUNICATION_SECONDS,
    "exposed_copy": metrics.EXPOSED_COPY_SECONDS,
    "idle": metrics.IDLE_SECONDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """One trial's traced steps.

    step_s: the median over all ranks' steps; None where no step was traced whole, and only counts are known.
    shares: per part of the step, its share of the traced step, the median over all ranks' steps.
    communication_s: time in which collectives ran, likewise; None where there was no communication.
    overlap_ratio: overlap over communication, likewise; None where there was no communication.
    collective_overlap_ratios: per collective, its overlap over its own time, likewise.
    attention_pairs: of the rank that attended least in a step, and of the one that attended most; None where ranks do
        not count.
    payload_bytes: per collective and mesh axis, what the rank that handed over most did in a step.
    """

    step_s: float | None
    shares: dict[str, float]
    communication_s: float | None
    overlap_ratio: float | None
    collective_overlap_ratios: dict[str, float]
    attention_pairs: tuple[float, float] | None
    payload_bytes: dict[tuple[str, str], float]


def join_traced(readings_by_rank: Sequence[Sequence[Reading]]) -> Traced | None:
    """The ranks' traced steps, joined; None where there are none."""
    shares: dict[str, list[float]] = defaultdict(list)
    overlaps: list[float] = []
    communications_s: list[float] = []
    steps_s: list[float] = []
    payload_bytes: dict[tuple[str, str], float] = {}
    of_collectives: dict[str, list[float]] = defaultdict(list)
    pairs: list[float] = []
    all_readings = [reading for readings in readings_by_rank for reading in readings]
    if not all_readings:
        return None
    for reading in all_readings:
        values = {sample.metric: sample.value for sample in reading.samples if not sample.labels}
        if metrics.TRACED_STEP_SECONDS.name in values:
            steps_s.append(values[metrics.TRACED_STEP_SECONDS.name])
        for part, metric in PARTS.items():
            if metric.name in values:
                shares[part].append(values[metric.name] / steps_s[-1])
        if metrics.COMMUNICATION_SECONDS.name in values:
            communications_s.append(values[metrics.COMMUNICATION_SECONDS.name])
        if metrics.OVERLAP_RATIO.name in values:
            overlaps.append(values[metrics.OVERLAP_RATIO.name])
        if metrics.ATTENTION_PAIRS.name in values:
            pairs.append(values[metrics.ATTENTION_PAIRS.name])
        for sample in reading.samples:
            if sample.metric == metrics.COLLECTIVE_OVERLAP_RATIO.name:
                of_collectives[sample.labels["collective"]].append(sample.value)
            if sample.metric == metrics.PAYLOAD_BYTES.name:
                place = (sample.labels["collective"], sample.labels["axis"])
                payload_bytes[place] = max(payload_bytes.get(place, 0.0), sample.value)
    return Traced(
        step_s=median(steps_s) if steps_s else None,
        shares={part: median(values) for part, values in shares.items()},
        communication_s=median(communications_s) if communications_s else None,
        overlap_ratio=median(overlaps) if overlaps else None,
        collective_overlap_ratios={name: median(values) for name, values in of_collectives.items()},
        attention_pairs=(min(pairs), max(pairs)) if pairs else None,
        payload_bytes=payload_bytes,
    )
