"""Sweeps: as many cases as the product of the lists, less what is excluded, each with a name of its own; fuzzed files
end in a suite or in a refusal."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.errors import Misuse
from bench.suite.file import read_suite
from bench.suite.form.sweeps import points
from bench.suite.form.tables import CaseTable, LeverTable, SuiteTable
from workloads.registry import SPECS

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

GRIDS = st.dictionaries(
    st.sampled_from(["ranks", "batch", "precision", "options.bucket_mb", "options.workers"]),
    st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True),
    max_size=4,
)


@FEW
@given(grid=GRIDS, data=st.data())
def test_a_grid_has_the_product_of_its_lists_less_what_is_excluded(grid: dict[str, list[int]], data: Any) -> None:
    found = points({"trials": 3, **grid}, list(grid))
    assert len(found) == math.prod(map(len, grid.values()))
    assert len({point.suffix for point in found}) == len(found)
    if len(found) > 1:
        excluded = {
            key.rpartition(".")[2]: data.draw(st.sampled_from(values))
            for key, values in grid.items()
            if len(values) > 1
        }
        left = points({"trials": 3, **grid}, list(grid), excluded=[excluded])
        gone = [point for point in found if point not in left]
        assert len(gone) == math.prod(len(values) for values in grid.values() if len(values) == 1) == 1
        assert all(gone[0].swept[key] == value for key, value in excluded.items())


@FEW
@given(length=st.integers(1, 5), others=st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True))
def test_zipped_lists_are_one_axis(length: int, others: list[int]) -> None:
    ranks, batch = list(range(1, length + 1)), [8 * rank for rank in range(1, length + 1)]
    table = {"ranks": ranks, "options.clip": others, "batch": batch}
    found = points(table, list(table), zipped=[["ranks", "batch"]])
    assert len(found) == length * len(others)
    assert all(point.values["batch"] == 8 * point.values["ranks"] for point in found)
    assert len({point.suffix for point in found}) == len(found)


def test_the_last_list_runs_fastest_and_names_follow_the_table() -> None:
    found = points({"b": [1, 2], "options.a": [True, False]}, ["b", "options.a"])
    assert [point.suffix for point in found] == ["[b=1,a=true]", "[b=1,a=false]", "[b=2,a=true]", "[b=2,a=false]"]


def test_true_is_not_excluded_by_one() -> None:
    with pytest.raises(Misuse, match=r'exclude\[0\] is {"a": 1}, which no combination of the lists has'):
        points({"a": [True, False]}, ["a"], excluded=[{"a": 1}])


@pytest.mark.parametrize(
    ("zipped", "said"),
    [
        ([["a"]], 'zip has a list of one key, "a"; name two or more that move together'),
        ([["a", "c"]], 'zip names "c", which is not a list of this table; its lists are: a, b, long'),
        ([["a", "b"], ["b", "a"]], "zip names b twice; a list moves with one group"),
        ([["a", "a"]], "zip names a twice; a list moves with one group"),
        (
            [["a", "long"]],
            "zip joins lists of different lengths: a has 2 and long has 3 values; give them equal lengths",
        ),
    ],
)
def test_lists_that_cannot_move_together_are_refused(zipped: list[list[str]], said: str) -> None:
    table = {"a": [1, 2], "b": [1, 2], "long": [1, 2, 3]}
    with pytest.raises(Misuse) as caught:
        points(table, list(table), zipped=zipped, place="[case.x]")
    assert str(caught.value) == f"[case.x] {said}"


@pytest.mark.parametrize(
    ("excluded", "said"),
    [
        ([{}], "exclude[0] is an empty table; name values of sweeps, or leave it out"),
        ([{"a": 1}, {"a": 3}], 'exclude[1] is {"a": 3}, which no combination of the lists has; leave it out'),
        ([{"steps": 3}], 'exclude[0] names "steps", which is not a list of this table; its lists are: a'),
        ([{"a": 1}, {"a": 2}], "exclude removes every case; keep at least one"),
    ],
)
def test_what_excludes_nothing_or_all_is_refused(excluded: list[dict[str, int]], said: str) -> None:
    with pytest.raises(Misuse) as caught:
        points({"a": [1, 2], "steps": 3}, ["a"], excluded=excluded, place="[case.x]")
    assert str(caught.value) == f"[case.x] {said}"


def test_a_list_too_many_is_refused_before_it_is_spelt_out() -> None:
    table = {name: list(range(100)) for name in "abcdef"}
    with pytest.raises(Misuse, match=r"has 1,000,000,000,000 combinations of its lists; it may have 1,000"):
        points(table, list(table))


# Files of any content.

KEYS = sorted({key for table in (SuiteTable, CaseTable, LeverTable) for key in table.__struct_fields__})
WORDS = st.sampled_from(
    [*KEYS, *(spec.name for spec in SPECS), "bucket_mb", "single[ranks=1]", "", "x", "\u00e4 b", "[", "\x01"]
)
VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-3, 9), st.just(2**70), st.floats(), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=8,
)
CASES = st.dictionaries(
    st.sampled_from([*(spec.name for spec in SPECS), "a", "b"]),
    st.dictionaries(st.sampled_from(CaseTable.__struct_fields__), VALUES, max_size=4),
    min_size=1,
    max_size=3,
)


def _toml(value: object) -> str:
    """Return a value as TOML has it within a line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(key)} = {_toml(item)}' for key, item in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def _read_or_refused(folder: Path, text: str) -> None:
    path = folder / "any.toml"
    path.write_text(text, encoding="utf-8")
    said = None
    try:
        suite = read_suite(path)
    except Misuse as error:
        said = str(error)
    if said is None:
        assert len({case.name for case in suite.cases}) == len(suite.cases) > 0
    else:
        assert str(path) in said
        assert len(said.splitlines()) == 1


@settings(FEW, max_examples=200)
@given(cases=CASES, top=st.dictionaries(st.sampled_from(SuiteTable.__struct_fields__), VALUES, max_size=2))
def test_tables_of_any_values_end_in_a_suite_or_in_a_refusal(
    tmp_path: Path, cases: dict[str, Any], top: dict[str, Any]
) -> None:
    text = "".join(f"{key} = {_toml(value)}\n" for key, value in {"schema_version": 1, "case": cases, **top}.items())
    tomllib.loads(text)
    _read_or_refused(tmp_path, text)


@FEW
@given(text=st.text(st.sampled_from("abc_[]{}=.,'\"\n#0123456789-\\ \x00\u2028"), max_size=60))
def test_texts_of_any_kind_end_in_a_suite_or_in_a_refusal(tmp_path: Path, text: str) -> None:
    _read_or_refused(tmp_path, f"schema_version = 1\n[case.ddp]\n{text}")
