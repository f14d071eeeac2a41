"""`observatory compare A B` over a made-up history: what is compared, what is refused, and what is said."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.analysis.compare.report import print_comparison
from bench.analysis.compare.sides import pair
from bench.case import Case, Purpose
from bench.cli import main
from bench.cli.compare import comparison_of
from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, MISUSE
from bench.store.history import History
from tests.bench.analysis.compare.made import NOISY, SLOWER, STEADY, A, B, failed, keep, of_suite, run_of, store_in
from tests.bench.made.examples import make_case, make_probe
from tests.bench.made.fake_runs import ddp_summary

BUCKETS = {**make_case().options, "bucket_mb": 1.0}
AD_HOC = Purpose(note="compare --ab: A, ddp on 2")
FIRST, SECOND = "20261101-010203-tiny-aaaaaa", "20261102-010203-tiny-bbbbbb"


def _without(case: Case, *options: str) -> Case:
    """The case as it was before these options existed."""
    return replace(case, options={name: value for name, value in case.options.items() if name not in options})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A history of runs that differ in one thing each."""
    url = store_in(tmp_path_factory.mktemp("store"))
    fsdp = make_case("fsdp")
    runs = [
        run_of("20261101-ddp-aaaaaa", STEADY),
        run_of("20261101-ddp-bbbbbb", SLOWER, night=1),
        run_of("20261101-ddp-noisy1", NOISY, night=1),
        run_of("20261101-ddp-single", (1.0,), night=1),
        run_of("20261101-ddp-bucket", STEADY, case=make_case(options=BUCKETS)),
        run_of("20261101-ddp-newver", STEADY, case=make_case(version=99)),
        run_of("fp32-fsdp", STEADY, case=fsdp),
        run_of("rounded-fsdp", SLOWER, case=make_case("fsdp", precision="bf16")),
        run_of("old-fsdp", STEADY, case=_without(make_case("fsdp", precision="bf16"), "weights", "grad_dtype")),
        run_of("20261101-ddp-other1", STEADY, hardware="another machine"),
        run_of("20261101-collectives", STEADY, case=make_probe()),
        failed(run_of("20261101-ddp-failed")),
        run_of("turn-a", (1.00, 1.20, 1.45, 1.70), in_turn_with=("turn-b",), purpose=AD_HOC),
        run_of("turn-b", (1.051, 1.259, 1.524, 1.786), in_turn_with=("turn-a",), purpose=AD_HOC),
        run_of("at-a", STEADY, commit=A, night=2),
        run_of("at-a-before", SLOWER, commit=A, night=1),
        run_of("at-a-fsdp", STEADY, case=fsdp, commit=A),
        run_of("at-b", SLOWER, commit=B, night=3),
        of_suite(run_of("night1-ddp", STEADY), FIRST, "ddp"),
        of_suite(run_of("night1-fsdp", STEADY, case=fsdp), FIRST, "fsdp"),
        of_suite(run_of("night1-gone", STEADY, case=make_case("zero1")), FIRST, "gone"),
        of_suite(run_of("night1-bucket", STEADY), FIRST, "bucket"),
        of_suite(run_of("night2-ddp", SLOWER, night=1), SECOND, "ddp"),
        of_suite(failed(run_of("night2-fsdp", case=fsdp, night=1)), SECOND, "fsdp"),
        of_suite(run_of("night2-bucket", case=make_case(options=BUCKETS), night=1), SECOND, "bucket"),
    ]
    keep(url, runs, [FIRST, SECOND])
    return url


def _compare(store: str, *words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(["compare", *words, "--store", store])
    said = capsys.readouterr()
    return code, said.out, said.err


def _outcomes(out: str) -> dict[str, str]:
    """The outcome of each metric of the only pair."""
    (compared,) = json.loads(out)["compared"]
    return {found["metric"].removeprefix("observatory_run_"): found["outcome"] for found in compared["figures"]}


@pytest.mark.parametrize(
    ("b", "outcome"), [("bbbbbb", "worse"), ("noisy1", "unsure"), ("single", "insufficient_data"), ("bucket", "same")]
)
def test_each_outcome_is_told_and_none_is_an_error(
    b: str, outcome: str, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("20261101-ddp-a", f"20261101-ddp-{b}", "--format", "json")
    code, out, err = _compare(store, *words, capsys=capsys)
    assert (code, err) == (FINE, "")
    assert _outcomes(out)["step_seconds"] == outcome
    assert _outcomes(out)["peak_memory_bytes"] == ("insufficient_data" if b == "single" else "same")


def test_a_person_is_told_what_differs_and_what_it_rests_on(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _compare(store, "20261101-ddp-bbbbbb", "20261101-ddp-bucket", capsys=capsys)
    assert code == FINE
    lines = out.splitlines()
    assert lines[:3] == [
        "A: run 20261101-ddp-bbbbbb",
        "B: run 20261101-ddp-bucket",
        "differs: option bucket_mb 25.0 -> 1.0",
    ]
    (step,) = [line for line in lines if line.startswith("median step")]
    assert step.split()[2:6] == ["1.30", "s", "1.00", "s"]
    assert step.rstrip().endswith("better")
    assert "3 main figures: 2 better, 1 same" in lines
    assert any(line.startswith("5 trials a side, measured at different times") for line in lines)


@pytest.mark.parametrize(
    ("a", "sides", "a_words", "b_words"),
    [
        ("old-fsdp", ("weights autocast", "weights bf16_compute"), "autocast", "bf16_compute"),
        ("fp32-fsdp", ("precision fp32", "precision bf16, weights bf16_compute"), "fp32", "bf16_compute"),
    ],
)
def test_sides_that_compute_differently_are_named_so_and_not_taken_for_a_regression(
    a: str, sides: tuple[str, str], a_words: str, b_words: str, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = _compare(store, a, "rounded-fsdp", capsys=capsys)
    assert code == FINE
    text = " ".join(out.split())
    note = f"A has {sides[0]}, B has {sides[1]}: they compute differently, so no change below is a regression of the"
    assert note in text
    assert "option weights autocast -> bf16_compute" in text
    table = out.partition("code\n")[2].partition("median step")[0].split()
    assert set(table) >= {a_words, b_words}
    _, out, _ = _compare(store, a, "rounded-fsdp", "--format", "json", capsys=capsys)
    (compared,) = json.loads(out)["compared"]
    assert note in compared["arithmetic_note"]
    assert compared["b_arithmetic"] == {"precision": "bf16", "weights": "bf16_compute", "grad_dtype": "fp32"}


def test_sides_of_the_same_arithmetic_have_no_note_on_it(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _compare(store, "20261101-ddp-bbbbbb", "20261101-ddp-bucket", "--format", "json", capsys=capsys)
    assert json.loads(out)["compared"][0]["arithmetic_note"] is None


def test_trials_that_took_turns_are_compared_in_pairs(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _compare(store, "turn-a", "turn-b", "--format", "json", capsys=capsys)
    (compared,) = json.loads(out)["compared"]
    assert compared["in_turn"]
    assert _outcomes(out)["step_seconds"] == "worse"


def test_three_trials_measured_apart_show_a_difference_once_the_series_has_a_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = store_in(tmp_path)
    keep(url, [run_of("before", STEADY[:3]), run_of("after", SLOWER[:3], night=1)])
    _, out, _ = _compare(url, "before", "after", capsys=capsys)
    assert "unsure, ~2 more" in out
    assert (
        "measured apart, may all lie in one of two modes, so a change counts only if its interval is beyond 1.5x"
        in " ".join(out.split())
    )
    (figure, *_) = json.loads(_compare(url, "before", "after", "--format", "json", capsys=capsys)[1])["compared"]
    assert "fewer than 5 trials" in figure["figures"][0]["reason"]
    keep(url, [run_of(f"night-{night}", STEADY[:3], night=night) for night in range(2, 14)])
    _, out, _ = _compare(url, "before", "after", "--format", "json", capsys=capsys)
    assert _outcomes(out)["step_seconds"] == "worse"


def test_a_smaller_margin_asks_for_more(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("20261101-ddp-a", "20261101-ddp-bucket", "--format", "json")
    assert _outcomes(_compare(store, *words, "--margin", "0.05", capsys=capsys)[1])["step_seconds"] == "same"
    assert _outcomes(_compare(store, *words, "--margin", "0.001", capsys=capsys)[1])["step_seconds"] == "unsure"


def test_suite_runs_are_compared_case_by_case_and_what_is_missing_is_named(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = _compare(store, FIRST, SECOND, "--format", "json", capsys=capsys)
    found = json.loads(out)
    assert code == CASE_FAILED
    assert [one["case"] for one in found["compared"]] == ["ddp"]
    assert sorted(found["missing"]) == [
        "bucket is not compared, because it is another series: option bucket_mb 25.0 -> 1.0",
        f"fsdp is not compared: suite run {SECOND} has no complete trial of it (failed: rank 1 was killed)",
        f"gone is not compared: suite run {SECOND} has no such case",
    ]


def test_a_commit_is_the_newest_run_of_each_of_its_series(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _compare(store, "aaaaaaa", "AB12345", "--format", "json", capsys=capsys)
    found: dict[str, Any] = json.loads(out)
    assert code == FINE
    assert [(one["a_run"], one["b_run"]) for one in found["compared"]] == [("at-a", "at-b")]
    assert found["missing"] == [f"fsdp on 2 is not compared: commit {B[:12]} has no run of its series"]
    assert found["notes"][0] == f"commit {A[:12]} has 3 runs of 2 series: the newest run of each is compared"
    assert found["notes"][-1].startswith(f"the machine or the program also differs: commit {A}")


def test_a_run_is_compared_with_the_run_of_its_series_in_a_suite(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = _compare(store, "at-a-fsdp", FIRST, "--format", "json", capsys=capsys)
    assert code == FINE
    assert [(one["a_run"], one["b_run"]) for one in json.loads(out)["compared"]] == [("at-a-fsdp", "night1-fsdp")]


def _printed(*, is_terminal: bool) -> list[str]:
    """Two runs beside each other, on a screen of 80 columns or into a file."""
    pairs = [pair("ddp", run_of("before", STEADY), run_of("after", NOISY)), pair("x", run_of("c"), run_of("d", SLOWER))]
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=is_terminal, color_system="standard" if is_terminal else None)
    for one in pairs:
        print_comparison(comparison_of("run before", "run after", [one], 0.02), "table", console)
    return file.getvalue().splitlines()


def test_a_terminal_of_80_columns_holds_the_table_in_the_outcomes_colours() -> None:
    lines = _printed(is_terminal=True)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in lines]
    assert max(map(len, plain)) <= 80
    assert sum(line.split()[:1] == ["figure"] for line in plain) == 2  # No column continues below.
    assert any("\x1b[33munsure" in line for line in lines)
    assert any("\x1b[31mworse" in line for line in lines)


def test_a_file_has_no_colours() -> None:
    assert not any("\x1b" in line for line in _printed(is_terminal=False))


def test_csv_has_a_row_for_each_figure(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _compare(store, "20261101-ddp-a", "20261101-ddp-bb", "--format", "csv", capsys=capsys)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["outcome"] for row in rows] == ["worse", "worse", "same"]
    assert float(rows[0]["value"]) == pytest.approx(1.3)
    assert rows[2]["labels"] == "account=live_tensors"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("20261101-ddp-a", "20261101-ddp-a"), "A and B are both run 20261101-ddp-aaaaaa; name two"),
        (("20261101-ddp-a", "20261101-ddp-failed"), "has no complete trial (failed: rank 1 was killed)"),
        (("20261101-ddp-a", "20261101-ddp-other1"), "ran on AMD EPYC, 2 cores, and 20261101-ddp-other1 on another"),
        (("20261101-ddp-a", "20261101-ddp-newver"), "begins a new series"),
        (("20261101-ddp-a", "20261101-coll"), "which measure different things"),
        (("20261101-ddp-a", "20261101-ddp"), '"20261101-ddp" may be any of run'),
        (("20261101-ddp-a", "20261101-ddp-bbbbbc"), 'did you mean "20261101-ddp-bbbbbb"?'),
        (("20261101-ddp-a", "ab123"), "and a commit has 7 digits or more"),
        (("20261101-ddp-a", "fffffff"), '"fffffff" is not a run, suite run or commit in the history'),
        (("20261101-ddp-a", "20261101-ddp-failed", "--set", "defaults.trials=3"), "--set is for measuring now"),
        (("20261101-ddp-bucket", "at-a"[:4] + "-fsdp", "--ranks", "2"), "--ranks is for measuring now"),
        (("20261101-ddp-bucket", "bbbbbbb" * 2), "is not a run, suite run or commit"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(
    words: tuple[str, ...], says: str, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _compare(store, *words, capsys=capsys)
    assert (code, out) == (MISUSE, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_commit_of_few_digits_is_not_taken_for_another(tmp_path: Path) -> None:
    url = store_in(tmp_path)
    keep(url, [run_of("x", commit=A), run_of("y", commit=None), run_of("z", commit="b" + A[1:])])
    with History(url) as history:
        assert [one.run for one in history.at_commit(A[:8], 10)] == ["x"]
        assert [one.run for one in history.at_commit(A[1:9], 10)] == ["x"]
        assert history.beginning_with("y", 10) == ("y",)


def test_a_run_that_lost_a_trial_is_not_compared_in_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trial 2 of the one may stand beside trial 3 of the other."""
    url = store_in(tmp_path)
    whole = run_of("whole", STEADY, in_turn_with=("lossy",))
    lossy = run_of("lossy", (1.0, 1.1), in_turn_with=("whole",))
    lossy = replace(lossy, case=whole.case)
    keep(url, [whole, lossy])
    _, out, _ = _compare(url, "whole", "lossy", "--format", "json", capsys=capsys)
    assert not json.loads(out)["compared"][0]["in_turn"]
    keep(url, [replace(lossy, outcome="interrupted")])
    _, out, _ = _compare(url, "whole", "lossy", "--format", "json", capsys=capsys)
    assert json.loads(out)["compared"][0]["in_turn"]


def _two_nights(folder: Path, *, failures: tuple[str, ...]) -> str:
    """Suite runs of a case and of two cases whose runs failed."""
    runs = [
        of_suite(made, suite_run, case)
        for night, suite_run in enumerate((FIRST, SECOND))
        for case, made in (
            ("ddp", run_of(f"{night}-ddp", STEADY, night=night)),
            ("killed", failed(run_of(f"{night}-killed", night=night))),
            ("diverged", failed(run_of(f"{night}-diverged", night=night))),
        )
    ]
    keep(store_in(folder), runs, [FIRST, SECOND], failures=failures)
    return store_in(folder)


def test_fire_drills_that_ended_as_they_should_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = _two_nights(tmp_path, failures=())
    code, out, _ = _compare(store, FIRST, SECOND, "--format", "json", capsys=capsys)
    document = json.loads(out)
    assert code == FINE
    assert [one["case"] for one in document["compared"]] == ["ddp"]
    assert document["missing"] == ["fire drills that ended as expected are left out: diverged, killed"]


def test_a_case_that_failed_beside_a_fire_drill_is_still_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = _two_nights(tmp_path, failures=("killed",))
    code, out, _ = _compare(store, FIRST, SECOND, "--format", "json", capsys=capsys)
    missing = json.loads(out)["missing"]
    assert code == CASE_FAILED
    assert len(missing) == 2
    assert missing[0].startswith("killed is not compared: ")
    assert missing[1] == "fire drills that ended as expected are left out: diverged"


def test_of_two_cases_of_one_series_that_of_the_same_name_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A suite may have one case twice, measured for another number of trials."""
    long = (*STEADY, *STEADY)
    store = store_in(tmp_path)
    runs = [
        of_suite(run_of("0-short", STEADY), FIRST, "short"),
        of_suite(run_of("1-short", SLOWER, night=1), SECOND, "short"),
        of_suite(run_of("1-long", long, night=1), SECOND, "long"),
        run_of("ad-hoc", STEADY),
    ]
    keep(store, runs, [FIRST, SECOND])
    for words in (("0-short", SECOND), (SECOND, "0-short")):
        code, out, _ = _compare(store, *words, "--format", "json", capsys=capsys)
        (compared,) = json.loads(out)["compared"]
        assert code == FINE
        assert {compared["a_run"], compared["b_run"]} == {"0-short", "1-short"}
    code, _, error = _compare(store, "ad-hoc", SECOND, capsys=capsys)
    assert code == MISUSE
    assert f"suite run {SECOND} has several cases of its series: " in error
    assert "short (1-short)" in error
    assert "long (1-long)" in error
    assert "name one of the runs" in error


# Without a store.

GONE = ("--store", "postgresql://127.0.0.1:1/nowhere")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs in a folder of runs."""
    runs = tmp_path / "runs"
    runs.mkdir()
    return Path(ddp_summary(runs).folder), Path(ddp_summary(runs).folder)


@pytest.mark.parametrize("is_named_by_id", [False, True], ids=["by folders", "by ids"])
def test_folders_of_runs_are_compared_while_the_store_is_down(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str], is_named_by_id: bool
) -> None:
    names = [folder.name if is_named_by_id else str(folder) for folder in folders]
    assert main.run(["compare", *names, "--runs", str(folders[0].parent), *GONE]) == FINE
    said = capsys.readouterr()
    assert said.out.startswith(f"A: run {folders[0].name}\nB: run {folders[1].name}\n")
    assert said.err.startswith("both runs are read from their folders: store postgresql")
    assert len(said.err.splitlines()) == 1


def test_folders_of_runs_are_compared_before_there_is_a_store(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"sqlite:///{tmp_path}/none.sqlite"
    assert main.run(["compare", *map(str, folders), "--store", store]) == FINE
    assert capsys.readouterr().err == ""


def test_what_only_the_store_knows_is_refused_while_it_is_down_and_says_what_can_be_compared(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["compare", str(folders[0]), "abcdef1", *GONE]) == INFRASTRUCTURE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith('; without it only folders of runs can be compared, and "abcdef1" is not one')
