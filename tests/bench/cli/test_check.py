"""`observatory check` as a person and as CI call it, in this process."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.cli.main import run
from bench.store.history import History
from bench.store.suite_record import CHOICE
from tests.bench.made.fake_nights import DAY_NS, STEP_S, FakeNights, fill

NIGHTS = 40


def _url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'history.sqlite'}"


def _history(folder: Path, slower: float = 1.0, *, nights: int = NIGHTS, days_ago: int = 0) -> list[str]:
    """A history of nights of two cases, one of which is slower in the last ten; return the store option.

    days_ago: how long ago the last night was.
    """
    first_ns = time.time_ns() - (nights - 1 + days_ago) * DAY_NS - DAY_NS // 12
    with History(_url(folder)) as history:
        made = FakeNights(history, first_ns=first_ns)
        fill(made, nights, lambda number: {"ddp": STEP_S * (slower if number >= nights - 10 else 1.0), "fsdp": STEP_S})
    return ["--store", _url(folder)]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A history with a regression of 8 %."""
    return _history(tmp_path_factory.mktemp("slow"), 1.08)


@pytest.fixture
def own_slow(slow: list[str], tmp_path: Path) -> list[str]:
    """A copy of it."""
    run(["check", *slow])
    shutil.copy(slow[1].removeprefix("sqlite:///"), tmp_path / "history.sqlite")
    return ["--store", _url(tmp_path)]


def test_a_night_like_the_others_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", *_history(tmp_path, nights=20)]) == 0
    said = capsys.readouterr()
    power, counts = said.out.splitlines()
    assert re.fullmatch(
        r"4 unchanged figures: with 20 nights, lasting changes of [\d.]+( to [\d.]+)? % or more are detectable", power
    )
    assert counts == "suite nightly, night night0019: 4 same"
    assert said.err == ""


def test_a_choice_is_checked_only_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = _history(tmp_path, nights=20)
    with History(_url(tmp_path)) as history:
        choice = FakeNights(history, suite=CHOICE, first_ns=time.time_ns())
        choice.add_record(0, done=0, outcome="interrupted", period_s=None, id="choice0")
    assert run(["check", *store]) == 0
    assert CHOICE not in capsys.readouterr().out
    assert run(["check", "--suite", CHOICE, *store]) == 0
    assert "choice0 was interrupted" in capsys.readouterr().out


def test_a_history_of_choices_alone_has_no_night(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with History(_url(tmp_path)) as history:
        FakeNights(history, suite=CHOICE).add_record(0, done=2, period_s=None)
    assert run(["check", "--store", _url(tmp_path)]) == 2
    says = "no suite has run yet except choices, which `--suite choose` checks; `observatory suite run smoke` runs one"
    assert says in capsys.readouterr().err


def test_same_is_said_only_where_a_night_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first_ns = time.time_ns() - 19 * DAY_NS - DAY_NS // 12
    with History(_url(tmp_path)) as history:
        fill(FakeNights(history, first_ns=first_ns, sd_ratio=0.03), 20)
    assert run(["check", "--details", "--store", _url(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"night0019: 2 no change shown \(less than 1\d % would not be detected in one night\)\n", said)
    assert " same" not in said
    run(["check", "--format", "json", "--store", _url(tmp_path)])
    (check,) = json.loads(capsys.readouterr().out)
    assert {(one["outcome"], one["is_equivalent"]) for one in check["verdicts"]} == {("no_change_shown", False)}
    assert check["counts"] == {"no_change_shown": 2}
    assert all(0.1 < one["visible_ratio"] < 0.2 for one in check["verdicts"])


def test_suspicions_that_were_not_measured_again_are_counted_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first_ns = time.time_ns() - 19 * DAY_NS - DAY_NS // 12
    with History(_url(tmp_path)) as history:
        fill(FakeNights(history, first_ns=first_ns), 20, lambda night: {"ddp": STEP_S * (1.05 if night == 19 else 1.0)})
    assert run(["check", "--store", _url(tmp_path)]) == 0
    assert "night night0019: 2 suspicions not measured again\n" in capsys.readouterr().out


def test_a_regression_is_told_with_how_much_and_since_when(slow: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--suite", "nightly", *slow]) == 5
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("ddp ")]
    assert [line.split()[1] for line in lines] == ["mean", "step"]
    assert all("confirmed worse" in line for line in lines)
    assert "suite nightly, night night0039: 2 confirmed worse, 2 same" in out


def test_a_regression_is_told_with_its_cause_and_what_to_do_next(
    slow: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", *slow]) == 5
    lines = capsys.readouterr().out.splitlines()
    place = lines.index("cause of ddp (mean step, step), run0030-ddp against run0029-ddp:")
    assert lines[place + 1].startswith("  step +")
    assert lines[place + 1].endswith("of unknown parts, as no step was traced; nothing that is recorded changed")
    assert "  next: observatory compare run0029-ddp run0030-ddp; observatory diagnose run0030-ddp" in lines[place:]


def test_each_figure_says_what_its_history_can_show(
    slow: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", *slow]) == 5
    words = " ".join(capsys.readouterr().out.split())
    pattern = r"with \d+ nights, lasting changes of [\d.]+ % or more are detectable"
    assert re.search(rf"ddp: mean step, step: {pattern}", words)
    assert re.search(r"2 unchanged figures: with 40 nights, lasting changes of [\d.]+ ", words)
    run(["check", "--format", "json", *slow])
    (document,) = json.loads(capsys.readouterr().out)
    for verdict in document["verdicts"]:
        can_show = verdict["can_show"]
        assert can_show["target_ratio"] == 0.03
        assert 0.005 <= can_show["detectable_ratio"] < 0.05
        assert can_show["history_nights"] == (40 if verdict["case"] == "fsdp" else 10)
    first_ns = time.time_ns() - 11 * DAY_NS - DAY_NS // 12
    with History(_url(tmp_path)) as history:
        fill(FakeNights(history, first_ns=first_ns, sd_ratio=0.01), 12)
    run(["check", "--format", "markdown", "--store", _url(tmp_path)])
    noisy = capsys.readouterr().out
    assert re.search(r"with 12 nights, lasting changes of [\d.]+ % or more are detectable; 3 % (after|with)", noisy)


def test_details_show_figures_that_are_as_they_were(slow: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--details", *slow]) == 5
    assert sum(line.startswith("fsdp ") for line in capsys.readouterr().out.splitlines()) == 2


def test_details_tell_levels_with_the_range_of_their_onset(slow: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(["check", "--details", *slow])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("levels of ")]
    assert [line.split(": ")[0] for line in lines] == ["levels of ddp, mean step", "levels of ddp, step"]
    assert re.fullmatch(
        r"levels of ddp, step: from \d{4}-\d\d-\d\d, 30 nights; \+[78]\.\d % from \d{4}-\d\d-\d\d.*, 10 nights",
        lines[1],
    )
    run(["check", "--details", "--format", "json", *slow])
    (document,) = json.loads(capsys.readouterr().out)
    before, now = next(one["regimes"] for one in document["regimes"] if one["figure"] == "step")
    assert now["value"] / before["value"] == pytest.approx(1.08, abs=0.01)
    assert now["since_low_ns"] <= now["since_ns"] <= now["since_high_ns"]
    assert before["since_ns"] < now["since_ns"]


def test_earlier_nights_are_shown_on_request(slow: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--since", "night0036", "--format", "json", *slow]) == 5
    (document,) = json.loads(capsys.readouterr().out)
    assert {one["suite_run"] for one in document["earlier"]} == {"night0036", "night0037", "night0038"}
    assert {one["suite_run"] for one in document["verdicts"]} == {"night0039"}


def test_what_is_missing_has_an_exit_code_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", *_history(tmp_path, nights=3, days_ago=3)]) == 3
    assert "not run: nightly: it last began 74 h ago, but should begin every 24 h" in capsys.readouterr().out


def test_a_regression_comes_before_what_is_missing(own_slow: list[str], tmp_path: Path) -> None:
    with History(_url(tmp_path)) as history:
        nights = FakeNights(history, first_ns=time.time_ns() - DAY_NS * NIGHTS - DAY_NS // 24)
        nights.add(NIGHTS, {"ddp": 1.08 * STEP_S})
    assert run(["check", *own_slow]) == 5


def test_an_accepted_level_is_no_regression_any_more(
    own_slow: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "--accept", "ddp", "--because", "exact softmax", *own_slow]) == 0
    assert "ddp of suite nightly: the present level of 2 figures is accepted" in capsys.readouterr().err
    with History(_url(tmp_path)) as history:
        nights = FakeNights(history, first_ns=time.time_ns() - DAY_NS * NIGHTS - DAY_NS // 24)
        nights.add(NIGHTS, {"ddp": 1.08 * STEP_S, "fsdp": STEP_S})
    assert run(["check", *own_slow]) == 0


def test_accepting_says_what_it_closed_of_a_machine_that_has_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = _history(tmp_path, 1.08, days_ago=3)
    with History(_url(tmp_path)) as history:
        nights = FakeNights(history, first_ns=time.time_ns() - DAY_NS * (NIGHTS + 2) - DAY_NS // 24)
        for name in ("ddp", "fsdp"):
            nights.add_run(NIGHTS + 2, name, nights.trials(STEP_S), hardware="NVIDIA H100")
        nights.add_record(NIGHTS + 2, done=2)
    assert run(["check", *store]) == 5
    assert run(["check", "--accept", "ddp", "--because", "a new machine", *store]) == 0
    said = "ddp of suite nightly: open verdicts on 2 figures that the last night did not measure are closed"
    assert said in capsys.readouterr().err
    assert run(["check", *store]) == 0


def test_json_has_each_figure_whole(slow: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(["check", "--format", "json", *slow])
    (document,) = json.loads(capsys.readouterr().out)
    assert (document["schema_version"], document["suite"], document["is_regression"]) == (1, "nightly", True)
    step = next(
        one for one in document["verdicts"] if one["case"] == "ddp" and one["metric"].endswith("run_step_seconds")
    )
    assert step["is_bad"]
    assert step["low"] < step["change_ratio"] < step["high"]
    assert step["low"] > 1


def test_junit_names_what_failed(slow: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--format", "junit", *slow]) == 5
    suite = ElementTree.fromstring(capsys.readouterr().out)[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "2",
        "errors": "0",
        "skipped": "0",
    }
    failed = [test for test in suite if test.find("failure") is not None]
    assert {test.get("classname") for test in failed} == {"nightly.ddp"}


def test_ci_gets_the_cause_in_a_line_with_the_next_command(slow: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for form in ("junit", "markdown", "json"):
        assert run(["check", "--format", form, *slow]) == 5
        said.append(capsys.readouterr().out)
    messages = [found.get("message") or "" for found in ElementTree.fromstring(said[0]).iter("failure")]
    words = "nothing that is recorded changed; next: `observatory compare run0029-ddp run0030-ddp`"
    assert len(messages) == 2
    assert all(message.endswith(words) for message in messages)
    assert sum(line.startswith("- cause of ddp: step ") for line in said[1].splitlines()) == 1
    (document,) = json.loads(said[2])
    (cause,) = document["causes"]
    kept = {one["cause"] for one in document["verdicts"] if one["is_bad"]}
    assert kept == {cause["line"]}
    assert {(one["good_run"], one["bad_run"]) for one in document["verdicts"] if one["is_bad"]} == {
        ("run0029-ddp", "run0030-ddp")
    }


def test_junit_counts_what_is_missing_as_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["check", "--format", "junit", *_history(tmp_path, nights=3, days_ago=3)])
    suite = ElementTree.fromstring(capsys.readouterr().out)[0]
    assert suite.get("errors") == "1"


def test_markdown_is_a_table_for_a_pull_request(slow: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--format", "markdown", *slow]) == 5
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "## Observatory: regression"
    assert "| case | figure | change | since | verdict |" in lines
    assert sum(line.startswith("| ddp |") for line in lines) == 2


def test_benchmark_records_have_pytorchs_form(slow: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--format", "benchmark", *slow]) == 5
    records = json.loads(capsys.readouterr().out)
    assert len(records) == 4
    for record in records:
        assert record["schema_version"] == "v3"
        assert record["benchmark"]["name"] == "parallel-observatory nightly"
        assert record["model"]["name"] in ("ddp", "fsdp")
        assert all(isinstance(value, float) for value in record["metric"]["benchmark_values"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite", "nighty"], 'suite "nighty" has no run in this history; did you mean "nightly"?'),
        (
            ["--since", "yesterday"],
            'night "yesterday" is neither a day, for example 2026-11-23, nor a suite run; the newest are: night0039',
        ),
        (["--since", "night003"], 'night "night003" may be any of: night0039'),
        (["--accept", "ddp"], '--accept ddp needs a reason, which is stored with it: --because "..."'),
        (["--because", "it is so"], "--because and --metric belong to --accept CASE"),
        (["--accept", "gpipe", "--because", "x"], 'case "gpipe" has never been judged, so there is no level'),
        (["--accept", "ddp", "--because", " "], "--because takes a line of up to 200 printable characters"),
    ],
)
def test_a_wrong_word_gets_one_line(
    slow: list[str], words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", *words, *slow]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_without_a_history_the_next_move_is_told_and_none_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "--store", _url(tmp_path)]) == 2
    assert "no suite has run yet; `observatory suite run smoke` runs one" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_reached_has_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--store", "postgresql://127.0.0.1:1/nowhere"]) == 4
