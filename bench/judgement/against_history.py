"""What earlier probes of the same hardware add to a run: MFU of a measured ceiling, what a measured link explains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.judgement.bubble import bubble_parts
from bench.judgement.ceiling import find_ceiling, measured_mfu
from bench.judgement.estimate import Estimate, estimate, ratio
from bench.judgement.expected_collectives import CALIBRATION, link_by
from bench.peaks import Absent
from bench.store.history import History
from bench.summary import Summary
from collectors.catalogue.results import RUN_COMMUNICATION_SECONDS, RUN_FLOPS
from collectors.metric import Metric
from workloads.laws.communication import Link, collective_time_s
from workloads.laws.interconnect import Interconnect, Level, traffic_times_s
from workloads.laws.terms import NotCovered, Transfer

PROBES = ("collectives", "all_reduce")
"""Probes that sweep an all_reduce, and so tell a link."""
LOOKED_THROUGH = 200


def against_history(summary: Summary, history: History) -> Summary:
    """The summary with what the history knows of its hardware; a probe's, and one without a trial, as it is.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    if summary.case.model is None or not summary.trials_done:
        return summary
    found = [*_mfu(summary, history), *_communication(summary, history), *_bubble(summary, history)]
    given = [one for one in found if isinstance(one, Estimate)]
    return replace(
        summary,
        # A part of the bubble may be given anew.
        estimates=(*(one for one in summary.estimates if not any(map(one.is_same_as, given))), *given),
        notes=(*summary.notes, *(one for one in found if isinstance(one, str))),
    )


def _mfu(summary: Summary, history: History) -> Iterator[Estimate | str]:
    """MFU against the ceiling, or why there is none."""
    ceiling = find_ceiling(history, summary.case, summary.hardware)
    if isinstance(ceiling, Absent):
        yield f"MFU against a measured ceiling is absent: {ceiling.reason}"
        return
    flops = _estimate(summary, RUN_FLOPS)
    share = measured_mfu(flops, ceiling)
    if isinstance(share, Absent):
        yield f"MFU against a measured ceiling is absent: {share.reason}"
        return
    yield share
    words = f"the measured ceiling is {ceiling.flops_per_second.median / 1e9:,.4g} GFLOP/s, of a product of"
    at = f", at {ceiling.at}" if ceiling.at else ""
    yield f"{words} {ceiling.m} x {ceiling.n} x {ceiling.k} in {ceiling.run}{at}"
    if share.low is None:
        yield f"the interval of that MFU is absent: {ratio(flops, ceiling.flops_per_second).why_no_interval}"


def _communication(summary: Summary, history: History) -> Iterator[Estimate | str]:
    """Time of the strategy's collectives in a step on the measured link, or why none is expected."""
    transfers = summary.case.card().transfers(summary.case)
    if not transfers:
        return
    link = _find_link(summary, history)
    if isinstance(link, Absent):
        yield f"expected communication is absent: {link.reason}"
        return
    expected_s = expected_communication_s(summary, transfers, link)
    if expected_s > 0:
        yield estimate(RUN_COMMUNICATION_SECONDS, [expected_s], account="expected")


def _bubble(summary: Summary, history: History) -> Iterator[Estimate | str]:
    """What explains the bubble of a pipeline; without a link, all but the wire."""
    case = summary.case
    pipeline = case.card().pipeline(case)
    if pipeline is None:
        return
    link = _find_link(summary, history, ("send", CALIBRATION))
    if isinstance(link, Absent):
        transfer_s: float | NotCovered = NotCovered(reason=link.reason)
    else:
        transfer_s = collective_time_s("send", pipeline.boundary_bytes, 2, link, case.backend)
    yield from bubble_parts(pipeline, summary.estimates, transfer_s)


def expected_communication_s(summary: Summary, transfers: tuple[Transfer, ...], link: Link) -> float:
    """All transfers of a step one after another, between ranks that one and the same link joins."""
    axes = summary.case.card().mesh(summary.case)
    node = Interconnect(levels=(Level(name="node", ranks=summary.case.ranks, link=link),))
    return sum(traffic_times_s(transfers, axes, node, summary.case.backend).values())


def _find_link(summary: Summary, history: History, collectives: Sequence[str] = (CALIBRATION,)) -> Link | Absent:
    """The link that the newest sweep on as many ranks of this hardware and backend told.

    collectives: whose sweep tells it, the best first.
    """
    case = summary.case
    candidates = [run for probe in PROBES for run in history.runs(limit=LOOKED_THROUGH, strategy=probe)]
    alike = [
        run
        for run in sorted(candidates, key=lambda run: run.started_ns, reverse=True)
        if run.outcome == "done"
        and (run.case.ranks, run.case.backend, run.hardware) == (case.ranks, case.backend, summary.hardware)
    ]
    for collective in collectives:
        for run in alike:
            if (link := link_by(run.estimates, collective)) is not None:
                return link
    best = collectives[0]
    return Absent(
        reason=f"no sweep of {' or '.join(collectives)} on {case.ranks} ranks of {summary.hardware} that tells a link"
        f" is in the history; `observatory run collectives --ranks {case.ranks} --option collectives={best}` makes one"
    )


def _estimate(summary: Summary, metric: Metric) -> Estimate:
    return next(found for found in summary.estimates if found.metric == metric.name)
