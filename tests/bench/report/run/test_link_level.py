"""The table of a sweep's link says between which ranks it was measured."""

from __future__ import annotations

import pytest

from bench.report.run.probes import probe_blocks
from bench.report.table import Table
from bench.results.estimate import estimate
from collectors.metrics.probes import RUN_LINK_BANDWIDTH, RUN_LINK_LATENCY_SECONDS
from tests.bench.made.examples import make_probe, make_summary

LINK = (
    estimate(RUN_LINK_LATENCY_SECONDS, [1e-5], collective="all_reduce"),
    estimate(RUN_LINK_BANDWIDTH, [45e9], collective="all_reduce"),
)


@pytest.mark.parametrize(
    ("ranks", "nodes", "words"),
    [
        (8, 1, "inside a node, all 8 ranks at once"),
        (16, 2, "across 2 nodes, all 8 ranks of each at once"),
        (2, 2, "across 2 nodes, 1 rank of each at once"),
    ],
)
def test_a_link_is_that_of_a_level_and_of_all_its_ranks_or_one(ranks: int, nodes: int, words: str) -> None:
    summary = make_summary(case=make_probe("collectives", ranks, nodes=nodes), estimates=LINK)
    (table,) = [block for block in probe_blocks(summary) if isinstance(block, Table)]
    column = list(table.columns).index("measured")
    assert [str(row[column]) for row in table.rows] == [words]
