"""Tables of an analysis are written for people, as JSON and as CSV, with what is missing of the traces."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from bench.analysis.traces.inputs import side_of
from bench.analysis.traces.report import AnalysisReport, write
from bench.errors import Misuse
from collectors.traces.table import Column, Table
from collectors.traces.timeline import About
from tests.bench.made.small_traces import small_timeline

STEPS = Table(
    name="steps",
    title="The time of each step",
    columns=(
        Column(name="rank"),
        Column(name="name"),
        Column(name="compute", unit="ns"),
        Column(name="overlap", unit="ratio"),
        Column(name="rate", unit="bytes/s"),
    ),
    rows=((0, "[bold]gemm[/bold]", 4_000_000, 0.25, 2.5e9), (1, "a, b", 1_700_000_000_000_000_001, None, None)),
    notes=("overlap is absent where nothing communicates",),
)
NOTES = ("rank 0: no step is marked in its trace",)
WHOLE = Table(name="whole", title="All of it", columns=(Column(name="rank"),), rows=())


def _found(*tables: Table) -> AnalysisReport:
    about = About(world_size=2, left_out=("the last event",))
    side = side_of("trace", [Path("a.json")], [small_timeline(0, about=about)])
    return AnalysisReport(analysis="summary", sides=(side,), tables=tables, notes=NOTES)


def _written(
    found: AnalysisReport, format_name: str, *, table_name: str | None = None, limit: int = 30
) -> tuple[str, list[str]]:
    text, said = io.StringIO(), list[str]()
    write(found, text, format_name, table_name=table_name, limit=limit, on_notice=said.append)
    return text.getvalue(), said


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_people_see_titles_readable_units_and_notes() -> None:
    lines = _lines(_written(_found(STEPS), "table")[0])
    assert lines[:5] == [
        "The time of each step",
        "rank name compute overlap rate",
        "0 [bold]gemm[/bold] 4.00 ms 25.0 % 2.50 GB/s",
        "1 a, b 1.7e+09 s - -",
        "overlap is absent where nothing communicates",
    ]


def test_people_see_what_is_missing_below_the_tables() -> None:
    text, said = _written(_found(STEPS), "table")
    assert _lines(text)[-2] == "a.json: left out: the last event"
    assert _lines(text)[-1].startswith("1 of 2 ranks have no trace (1)")
    assert said == []


@pytest.mark.parametrize("table_name", [None, "steps", "whole"])
def test_notes_of_the_analysis_are_said_once_whichever_table_is_chosen(table_name: str | None) -> None:
    found = _found(STEPS, WHOLE)
    text, _ = _written(found, "table", table_name=table_name)
    assert text.count(NOTES[0]) == 1
    document = json.loads(_written(found, "json", table_name=table_name)[0])
    assert document["notes"] == list(NOTES)
    if table_name is not None:
        assert NOTES[0] in _written(found, "csv", table_name=table_name)[1]


@pytest.mark.parametrize("format_name", ["table", "csv"])
def test_what_a_terminal_would_obey_reaches_none(format_name: str) -> None:
    evil = "names seen: \x1b[31mgemm\r\x07\nnext"
    table = Table(name="one", title="One", columns=(Column(name="rank"),), rows=((0,),), notes=(evil,))
    side = side_of("trace", [Path("a.json")], [small_timeline(0, about=About(left_out=(evil,)))])
    found = AnalysisReport(analysis="summary", sides=(side,), tables=(table,), notes=(evil,))
    text, said = _written(found, format_name, table_name="one")
    lines = [line for line in (*text.splitlines(), *said) if "gemm" in line]
    assert [line.removeprefix("a.json: left out: ") for line in lines] == ["names seen: ?[31mgemm???next"] * 3


def test_of_two_sides_each_tells_what_is_missing_of_it() -> None:
    sides = tuple(side_of(name, [Path("a.json")], [small_timeline(0)]) for name in ("before", "after"))
    lines = AnalysisReport(analysis="diff", sides=sides, tables=(), notes=()).notices()
    assert [line.partition(" 1 of")[0] for line in lines] == ["before:", "after:"]


def test_shortened_names_are_said_to_be() -> None:
    long = Table(name="long", title="Long", columns=(Column(name="name"),), rows=(("x" * 100,),))
    assert "some names are shortened in the middle; --format json has the full names" in _lines(
        _written(_found(long), "table")[0]
    )


def test_json_has_every_cell_exactly_with_its_unit() -> None:
    text, said = _written(_found(STEPS, WHOLE), "json")
    document = json.loads(text)
    assert (document["schema_version"], document["analysis"]) == (1, "summary")
    assert document["traces"] == [{"side": "trace", "rank": 0, "file": "a.json", "left_out": ["the last event"]}]
    steps, whole = document["tables"]
    assert steps["columns"][2] == {"name": "compute", "unit": "ns"}
    assert steps["rows"] == [list(row) for row in STEPS.rows]
    assert steps["notes"] == list(STEPS.notes)
    assert (whole["name"], whole["rows"]) == ("whole", [])
    assert said[0] == "a.json: left out: the last event"


def test_json_may_be_of_one_table() -> None:
    document = json.loads(_written(_found(STEPS, WHOLE), "json", table_name="whole")[0])
    assert [table["name"] for table in document["tables"]] == ["whole"]


def test_csv_names_units_in_its_columns_and_leaves_empty_what_is_not_known() -> None:
    text, said = _written(_found(STEPS, WHOLE), "csv", table_name="steps")
    rows = list(csv.reader(io.StringIO(text)))
    assert rows == [
        ["rank", "name", "compute_ns", "overlap_ratio", "rate_bytes_per_second"],
        ["0", "[bold]gemm[/bold]", "4000000", "0.25", "2500000000.0"],
        ["1", "a, b", "1700000000000000001", "", ""],
    ]
    assert said[:3] == [*STEPS.notes, *NOTES, "a.json: left out: the last event"]


def test_csv_of_several_tables_asks_for_one() -> None:
    with pytest.raises(
        Misuse, match=r"--format csv writes one table, and summary has steps, whole; choose with --table"
    ):
        _written(_found(STEPS, WHOLE), "csv")


@pytest.mark.parametrize("format_name", ["table", "json", "csv"])
def test_an_unknown_table_is_refused_with_those_that_there_are(format_name: str) -> None:
    with pytest.raises(Misuse, match='--table is "setps"; summary has steps, whole'):
        _written(_found(STEPS, WHOLE), format_name, table_name="setps")
