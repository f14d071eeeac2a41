"""The tables of a critical path add up, and leave nothing out."""

from __future__ import annotations

from dataclasses import replace

from collectors.traces.analyzers.critical_path import PathPart, StepPath, path_tables
from collectors.traces.table import Table


def _step(name: str, start_ns: int, count: int) -> StepPath:
    """A step of parts that last 1, 2, 3 ... ns, each with a name of its own."""
    parts, at_ns = [], start_ns
    for number in range(1, count + 1):
        kind = "compute" if number % 2 else "host"
        parts.append(
            PathPart(
                rank=number % 3,
                kind="compute" if kind == "compute" else "host",
                name=f"part {number}",
                stream=7,
                start_ns=at_ns,
                end_ns=at_ns + number,
            )
        )
        at_ns += number
    half_ns = (at_ns - start_ns) // 2
    return StepPath(step=name, start_ns=start_ns, end_ns=at_ns, parts=tuple(parts), free_ns={"compute": half_ns})


def _tables(*steps: StepPath) -> dict[str, Table]:
    return {table.name: table for table in path_tables(steps)}


def test_the_kinds_of_a_step_add_up_to_it() -> None:
    (row,) = _tables(_step("one", 1_000, 4))["critical_path"].rows
    assert row == ("one", 10, 4, 0, 0, 0, 6, 0)


def test_what_is_free_is_told_for_all_steps_and_for_each() -> None:
    rows = _tables(_step("one", 0, 3), _step("two", 6, 7))["if_free"].rows
    assert rows == (
        ("all steps", "compute", 17, 17, 0.5),
        ("one", "compute", 3, 3, 0.5),
        ("two", "compute", 14, 14, 0.5),
    )


def test_the_shares_of_ranks_and_names_are_of_all_steps() -> None:
    tables = _tables(_step("one", 0, 3))
    assert tables["ranks"].rows == ((0, 3, 0.5), (1, 1, 1 / 6), (2, 2, 1 / 3))
    assert tables["names"].rows[0] == ("compute", "part 3", 1, 3, 0.5)


def test_every_name_and_every_part_has_its_row_however_many_there_are() -> None:
    tables = _tables(_step("one", 0, 600))
    assert [row[3] for row in tables["names"].rows] == list(range(600, 0, -1))
    assert {row[3] for row in tables["path"].rows} == {f"part {number}" for number in range(1, 601)}


def test_the_path_that_is_shown_is_that_of_the_median_step_longest_parts_first() -> None:
    table = _tables(_step("short", 0, 2), _step("middle", 100, 3), _step("long", 200, 9))["path"]
    assert [(row[0], row[3]) for row in table.rows] == [(3, "part 3"), (1, "part 2"), (0, "part 1")]


def test_a_stream_of_one_of_several_devices_is_shown_with_it() -> None:
    step = _step("one", 0, 2)
    one, other = step.parts
    parts = (replace(one, stream=(3 << 32) + 7), replace(other, kind="delay", stream=None))
    rows = _tables(replace(step, parts=parts))["path"].rows
    assert [row[4] for row in rows] == [None, "7 of GPU 3"]


def test_of_no_step_all_tables_are_empty() -> None:
    assert all(table.rows == () for table in _tables().values())
