"""Made-up runs of probes, on the hardware of the made-up machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.results.estimate import Estimate, estimate
from bench.store.summary import Summary
from collectors.metrics import probes as probes_metrics
from tests.bench.made.examples import make_case, make_machine, make_summary
from workloads.registry import spec_of

SECOND_NS = 1_000_000_000


def product(size: int, flops: float) -> Estimate:
    """A matrix product."""
    return estimate(probes_metrics.RUN_MATMUL_FLOPS, (flops,), m=str(size), n=str(size), k=str(size))


def copy(kind: str, rate: float, size: int = 1 << 28) -> Estimate:
    """A copy, of buffers as large as the probe takes unless told otherwise."""
    return estimate(probes_metrics.RUN_COPY_BANDWIDTH, (rate,), kind=kind, size=str(size))


def busbw(collective: str, rate: float, size: int = 4096, algorithm: str = "library") -> Estimate:
    """A collective."""
    return estimate(
        probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH, (rate,), collective=collective, algorithm=algorithm, size=str(size)
    )


def probe(run: str, strategy: str, *estimates: Estimate, at_s: int = 0, ranks: int = 2, **changes: Any) -> Summary:
    """A run of a probe that ended well, unless changes say otherwise; those of its case are under `case`."""
    of_case = changes.pop("case", {})
    version = spec_of(strategy).version_on(of_case.get("device", "cpu"))
    case = replace(make_case(strategy, ranks), **{"model": None, "version": version, **of_case})
    settings = {"hardware": make_machine().hardware("cpu"), "estimates": estimates, "scaling": ()} | changes
    return make_summary(run, case=case, started_ns=(1_700_000_000 + at_s) * SECOND_NS, **settings)
