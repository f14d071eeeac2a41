"""Made-up runs of probes that a predicted step rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.case import Case
from bench.results.estimate import estimate
from bench.store.history import History
from collectors.metrics.probes import (
    RUN_COPY_BANDWIDTH,
    RUN_LINK_BANDWIDTH,
    RUN_LINK_LATENCY_SECONDS,
    RUN_MATMUL_FLOPS,
)
from tests.bench.made.examples import make_machine, make_probe, make_summary
from workloads.registry import spec_of

RATE = 1e11
LATENCY_S, BANDWIDTH = 1e-4, 1e9
MEMORY_RATE = 1e10
"""Of a copy."""


def add_matmul(
    history: History, case: Case, hardware: str, *, run: str = "matmul-a", rates: Sequence[float] = (RATE,)
) -> None:
    """Store a `matmul` run that is comparable with the case. rates: FLOP/s of each trial."""
    probe = replace(make_probe("matmul"), ranks=case.ranks, threads=case.threads)
    probe = replace(probe, version=spec_of("matmul").version_on(probe.device))
    products = (estimate(RUN_MATMUL_FLOPS, rates, m="512", n="512", k="512"),)
    history.add(make_summary(run, case=probe, hardware=hardware, estimates=products, scaling=()), make_machine())


def add_copies(
    history: History, case: Case, hardware: str, *, run: str = "copies-a", rates: Sequence[float] = (MEMORY_RATE,)
) -> None:
    """Store a `copies` run that is comparable with the case. rates: bytes a second of each trial."""
    probe = replace(make_probe("copies"), ranks=case.ranks, threads=case.threads)
    probe = replace(probe, version=spec_of("copies").version_on(probe.device))
    copies = (estimate(RUN_COPY_BANDWIDTH, rates, kind="memory_copy", size="1"),)
    history.add(make_summary(run, case=probe, hardware=hardware, estimates=copies, scaling=()), make_machine())


def add_sweep(
    history: History, case: Case, hardware: str, *, run: str = "sweep", bandwidths: Sequence[float] = (BANDWIDTH,)
) -> None:
    """Store a sweep over as many ranks as the case has. bandwidths: bytes a second of each trial's fit."""
    fit = (
        estimate(RUN_LINK_LATENCY_SECONDS, [LATENCY_S] * len(bandwidths), collective="all_reduce"),
        estimate(RUN_LINK_BANDWIDTH, bandwidths, collective="all_reduce"),
    )
    probe = make_probe("collectives", case.ranks)
    history.add(make_summary(run, case=probe, hardware=hardware, estimates=fit, scaling=()), make_machine())
