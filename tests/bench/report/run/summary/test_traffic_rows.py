"""Rows of traffic: one for each collective, and for each axis where a run's mesh has several."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console

from bench.report.run.summary import print_summaries
from bench.results.estimate import Estimate, estimate
from bench.store.summary import Summary
from collectors.metrics.results import RUN_PAYLOAD_BYTES
from tests.bench.made.examples import make_summary


def _traffic(*axes: str) -> Summary:
    return make_summary(estimates=tuple(_counted(axis, 2.0 ** (20 + place)) for place, axis in enumerate(axes)))


def _counted(axis: str, size_bytes: float) -> Estimate:
    return estimate(RUN_PAYLOAD_BYTES, [size_bytes], collective="all_reduce", axis=axis, account="counted")


def _payload_rows(summaries: Sequence[Summary]) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=200)
    print_summaries(summaries, "table", console, has_details=True)
    assert isinstance(console.file, io.StringIO)
    lines = (line.split("  ") for line in console.file.getvalue().splitlines() if line.startswith("payload"))
    return [[cell.strip() for cell in line if cell] for line in lines]


def test_a_run_of_one_axis_does_not_name_it() -> None:
    assert _payload_rows([_traffic("data")]) == [["payload all reduce counted", "1.00 MiB"]]


def test_a_run_of_several_axes_has_a_row_for_each() -> None:
    assert _payload_rows([_traffic("data", "tensor")]) == [
        ["payload all reduce over data counted", "1.00 MiB"],
        ["payload all reduce over tensor counted", "2.00 MiB"],
    ]


def test_runs_of_one_axis_share_a_row_whatever_their_axis() -> None:
    assert _payload_rows([_traffic("data"), _traffic("shard")]) == [
        ["payload all reduce counted", "1.00 MiB", "1.00 MiB"]
    ]


def test_a_run_of_before_axes_were_told_is_shown() -> None:
    old = Estimate(
        metric=RUN_PAYLOAD_BYTES.name,
        labels={"collective": "all_reduce", "account": "counted"},
        median=2.0**20,
        low=None,
        high=None,
        trials=(2.0**20,),
    )
    assert _payload_rows([make_summary(estimates=(old,))]) == [["payload all reduce counted", "1.00 MiB"]]
