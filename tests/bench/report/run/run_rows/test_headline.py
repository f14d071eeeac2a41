"""The one figure of a run in a list."""

from __future__ import annotations

from bench.report.run.run_rows import headline
from bench.results.estimate import estimate
from collectors.metrics import probes as probes_metrics
from collectors.metrics import results
from tests.bench.machine.doctor.runs import probe
from tests.bench.made.examples import make_summary


def test_the_best_of_a_probe_has_no_interval() -> None:
    slow, fast = (
        estimate(
            probes_metrics.RUN_COPY_BANDWIDTH, [scale * rate for rate in (1e9, 1.1e9, 1.2e9)], kind=kind, size="1024"
        )
        for scale, kind in ((1, "memory_copy"), (2, "memory_triad"))
    )
    assert headline(probe("run-a", "copies", slow, fast)) == "2.20 GB/s at best memory_triad"


def test_tokens_a_second_keep_their_interval() -> None:
    found = estimate(results.RUN_TOKENS_PER_SECOND, (1000.0, 1100.0, 1200.0))
    assert headline(make_summary(estimates=(found,))).startswith("1,100 [")
