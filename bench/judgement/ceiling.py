"""The fastest matrix product that this hardware was seen to compute, and model FLOP/s as a share of it.

A data sheet promises a peak that no product reaches, and none for a CPU. What a `matmul` run measured on the same
hardware at the same precision is within reach, so that what is missing from 1 is the training's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.case import Case
from bench.judgement.estimate import Estimate, ratio
from bench.judgement.gpu_clocks import clock_and_power
from bench.peaks import Absent
from bench.store.history import History
from bench.summary import Summary
from collectors.catalogue.ceilings import RUN_MATMUL_CLOCK_HERTZ, RUN_MATMUL_FLOPS, RUN_MATMUL_POWER_WATTS
from collectors.catalogue.results import RUN_MEASURED_MFU
from workloads.cards.matmul import CARD

RUNS_SEARCHED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The fastest shape of a `matmul` run.

    run: its id. m, n, k: of an m by k times a k by n matrix. flops_per_second: of the slowest rank. clock_hertz,
    power_watts: of that rank's GPU meanwhile; None where nobody read them.
    """

    run: str
    m: int
    n: int
    k: int
    flops_per_second: Estimate
    clock_hertz: float | None = None
    power_watts: float | None = None

    @property
    def at(self) -> str:
        """The clock and the power for people: "1,755 MHz, 690 W"; "" where neither is known."""
        return clock_and_power(self.clock_hertz, self.power_watts)


def ceiling_from(summary: Summary) -> Ceiling | Absent:
    """The shape of highest median rate, absent where the run measured no product."""
    products = [found for found in summary.estimates if found.metric == RUN_MATMUL_FLOPS.name]
    if not products:
        return Absent(
            reason=f"run {summary.run} measured no matrix product; `observatory show {summary.run}` says what became"
            " of it"
        )
    fastest = max(products, key=lambda product: product.median)
    m, n, k = (int(fastest.labels[name]) for name in RUN_MATMUL_FLOPS.labels)
    beside = {found.metric: found.median for found in summary.estimates if found.labels == fastest.labels}
    return Ceiling(
        run=summary.run,
        m=m,
        n=n,
        k=k,
        flops_per_second=fastest,
        clock_hertz=beside.get(RUN_MATMUL_CLOCK_HERTZ.name),
        power_watts=beside.get(RUN_MATMUL_POWER_WATTS.name),
    )


def find_ceiling(history: History, case: Case, hardware: str) -> Ceiling | Absent:
    """The highest of the `matmul` runs that ended well where the case runs, and at its precision.

    The highest and not the newest: a later run of small products, or on a busy machine, does not lower what was within
    reach. Ranks on a CPU share its clock and memory, so there their number counts, as do their threads; a GPU is its
    rank's own. A run by another version of the probe does not count.
    """
    alike = [
        ceiling_from(summary)
        for summary in history.runs(RUNS_SEARCHED, CARD.name)
        if summary.outcome == "done" and summary.hardware == hardware and _is_alike(summary.case, case)
    ]
    found = [ceiling for ceiling in alike if isinstance(ceiling, Ceiling)]
    if found:
        return max(found, key=lambda ceiling: ceiling.flops_per_second.median)
    return Absent(
        reason=f"no matmul run on {hardware} is in the history that is like this one; `{_command(case)}` makes one"
    )


def measured_mfu(flops: Estimate, ceiling: Ceiling) -> Estimate | Absent:
    """Model FLOP/s of a device (RUN_FLOPS) as a share of the ceiling, absent where it would exceed 1.

    low, high: of the ratio of two medians, see `bench.judgement.estimate.ratio`, so that the ceiling's own noise is in
    it; None where either side has no interval. trials: each trial's FLOP/s as a share of the ceiling's median.
    """
    share = ratio(flops, ceiling.flops_per_second)
    if share.value > 1:
        shape = f"{ceiling.m} x {ceiling.n} x {ceiling.k}"
        return Absent(
            reason=f"measured MFU would be {share.value:.2f}, which cannot be:"
            f" {flops.median / 1e12:.4g} TFLOP/s of a ceiling of {ceiling.flops_per_second.median / 1e12:.4g}"
            f" (run {ceiling.run}, {shape}); its products were too small, or its clock was lower:"
            f" `observatory run {CARD.name}` with its default sizes measures it anew"
        )
    return Estimate(
        metric=RUN_MEASURED_MFU.name,
        labels={},
        median=share.value,
        low=share.low,
        high=share.high,
        trials=tuple(trial / ceiling.flops_per_second.median for trial in flops.trials),
    )


def _is_alike(matmul: Case, case: Case) -> bool:
    version = CARD.version_on(case.device)
    if (matmul.version, matmul.device, matmul.precision) != (version, case.device, case.precision):
        return False
    return case.device == "cuda" or (matmul.ranks, matmul.threads) == (case.ranks, case.threads)


def _command(case: Case) -> str:
    shared = f" --ranks {case.ranks} --threads {case.threads}" if case.device == "cpu" else ""
    return f"observatory run {CARD.name} --device {case.device} --precision {case.precision}{shared}"
