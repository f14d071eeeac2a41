"""The one figure of a run in a list."""

from __future__ import annotations

from bench.judgement.estimate import estimate
from bench.reports.headline import headline
from collectors.catalogue import ceilings, results
from tests.bench.doctor.runs import probe
from tests.bench.examples import make_summary


def test_the_best_of_a_probe_has_no_interval() -> None:
    slow, fast = (
        estimate(ceilings.RUN_COPY_BANDWIDTH, [scale * rate for rate in (1e9, 1.1e9, 1.2e9)], kind=kind, size="1024")
        for scale, kind in ((1, "memory_copy"), (2, "memory_triad"))
    )
    assert headline(probe("run-a", "copies", slow, fast)) == "2.20 GB/s at best memory_triad"


def test_tokens_a_second_keep_their_interval() -> None:
    found = estimate(results.RUN_TOKENS_PER_SECOND, (1000.0, 1100.0, 1200.0))
    assert headline(make_summary(estimates=(found,))).startswith("1,100 [")
