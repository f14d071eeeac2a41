"""Each analysis of the roster gives sound tables of real traces, or says why it cannot."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path

import pytest

from bench.analysis.traces.analyses import ANALYSES, Analysis
from bench.errors import Misuse
from bench.results.timelines import read_files
from collectors.traces.analyzers.merge import merge
from collectors.traces.table import Table
from collectors.traces.timeline import Timeline
from tests.bench.made.small_traces import small_timeline
from tests.support.timelines import timeline_of

REAL = Path(__file__).parents[3] / "../shared/data/traces"
SETS = {
    "eight ranks": "dlrm_v100_rank*.json.gz",
    "names without arguments": "resnet_mi300x_rank0_of_8.json.gz",
    "arguments and steps": "nccl_a100_rank0_of_2.json.gz",
}
EMPTY = timeline_of([], rank=0, is_device=True)
HOST = timeline_of([], rank=1, is_device=False)


@cache
def _real(pattern: str) -> tuple[Timeline, ...]:
    paths = sorted(REAL.glob(pattern))
    if not paths:
        pytest.skip(f"{REAL} holds no {pattern}")
    return read_files(paths)


def _check(table: Table) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", table.name)
    assert table.title
    assert len({column.name for column in table.columns}) == len(table.columns)
    for column in table.columns:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", column.name)
        assert not column.name.endswith(("_ns", "_ratio", "_bytes"))
    for row in table.rows:
        assert len(row) == len(table.columns)
        for cell, column in zip(row, table.columns, strict=True):
            assert type(cell) in (str, int, float, type(None)), (table.name, column.name, cell)
            if type(cell) is float:
                assert math.isfinite(cell), (table.name, column.name)
                assert column.unit != "ns", (table.name, column.name)
            if column.unit:
                assert not isinstance(cell, str), (table.name, column.name)


@pytest.mark.parametrize("traces", SETS)
@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.name)
def test_tables_of_real_traces_are_sound(analysis: Analysis, traces: str) -> None:
    side = _real(SETS[traces])
    found = analysis.run(*(side for _ in analysis.sides))
    tables = found.tables()
    assert len({table.name for table in tables}) == len(tables)
    for table in tables:
        _check(table)
    assert found.notes or any(table.rows for table in tables)
    assert len(set(found.notes)) == len(found.notes)
    assert not {note for table in tables for note in table.notes} & set(found.notes)


@pytest.mark.parametrize("traces", [(EMPTY,), (HOST,), (EMPTY, HOST)], ids=["device", "host", "both"])
@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.name)
def test_traces_of_nothing_are_refused_or_give_a_reason(analysis: Analysis, traces: tuple[Timeline, ...]) -> None:
    try:
        found = analysis.run(*(traces for _ in analysis.sides))
    except Misuse:
        return
    for table in found.tables():
        _check(table)
    assert found.notes


def test_a_merge_of_small_traces_is_a_file_that_viewers_open() -> None:
    document = json.loads(merge([small_timeline(0), small_timeline(1)]).content)
    assert {event["name"] for event in document["traceEvents"]} >= {"gemm", "process_name"}


def test_no_two_entries_have_one_name() -> None:
    names = [analysis.name for analysis in ANALYSES]
    assert len(set(names)) == len(names)
