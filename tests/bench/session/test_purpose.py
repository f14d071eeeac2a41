"""Which runs are ad hoc, and what a note may be."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bench.case import ONE_RUN, USUAL, Purpose, check_purpose, why_ad_hoc
from bench.errors import Misuse
from bench.report.run.summary import print_run, print_summaries
from bench.store.summary import decode, encode
from tests.bench.made.examples import SMALL, make_case, make_probe, make_summary

AS_USUAL = replace(
    make_case(),
    trials=USUAL["trials"],
    steps=USUAL["steps"],
    warm_up=USUAL["warm_up"],
    trace_steps=USUAL["trace_steps"],
)


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, ()),
        ({"trials": 2}, ("trials 2 instead of 3",)),
        ({"steps": 19}, ("steps 19 instead of 20",)),
        ({"warm_up": 0}, ("warm-up 0 instead of 5",)),
        ({"trace_steps": 0}, ("trace-steps 0 instead of 3",)),
        ({"seed": 7}, ("seed 7 instead of 0",)),
        ({"trials": 1, "steps": 1}, ("trials 1 instead of 3", "steps 1 instead of 20")),
    ],
)
def test_a_run_that_measures_less_or_with_another_seed_is_ad_hoc(
    changes: dict[str, Any], reasons: tuple[str, ...]
) -> None:
    assert why_ad_hoc(replace(AS_USUAL, **changes), ONE_RUN) == reasons


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": 5, "steps": 200, "warm_up": 50, "trace_steps": 10},
        {"options": {**AS_USUAL.options, "bucket_mb": 1}},
        {"ranks": 4, "precision": "bf16", "threads": 2, "model": SMALL},
    ],
)
def test_what_is_more_than_usual_or_another_series_is_not_ad_hoc(changes: dict[str, Any]) -> None:
    case = replace(AS_USUAL, **changes)
    assert why_ad_hoc(case, ONE_RUN) == ()
    assert case.key() != AS_USUAL.key() or "trials" in changes


def test_a_probe_lacks_no_traced_steps() -> None:
    assert why_ad_hoc(make_probe(trials=3, steps=20, warm_up=5, trace_steps=0), ONE_RUN) == ()


def test_a_note_makes_a_run_ad_hoc_and_what_is_nightly_never_is() -> None:
    assert why_ad_hoc(AS_USUAL, Purpose(note="a new cable")) == ("it has a note",)
    assert why_ad_hoc(replace(AS_USUAL, steps=1, seed=7), Purpose(origin="nightly")) == ()


@pytest.mark.parametrize(
    ("purpose", "message"),
    [
        (Purpose(note=""), "note is empty"),
        (Purpose(note="  "), "note is empty"),
        (Purpose(note="x" * 201), "note has 201 characters; at most 200 are allowed"),
        (Purpose(note="two\nlines"), "cannot be printed"),
        (Purpose(note="\x1b[31mred"), "cannot be printed"),
        (Purpose(note="a new cable", origin="nightly"), "leave one of the two out"),
    ],
)
def test_a_note_that_is_none_is_refused(purpose: Purpose, message: str) -> None:
    with pytest.raises(Misuse, match=message):
        check_purpose(purpose)


def test_a_summary_of_before_notes_is_of_one_run() -> None:
    summary = make_summary()
    older = msgspec.json.decode(encode(summary))
    del older["purpose"]
    assert decode(msgspec.json.encode(older)) == replace(summary, purpose=ONE_RUN)


def test_people_are_told_that_a_run_is_ad_hoc_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    quick = make_summary(case=replace(AS_USUAL, steps=1), purpose=ONE_RUN)
    print_summaries([quick], "table")
    assert "ddp on 2: ad-hoc run (steps 1 instead of 20), so /metrics does not show it" in capsys.readouterr().out
    print_run(make_summary(case=AS_USUAL, purpose=Purpose(note="[red] and [/nothing]")), "table")
    shown = capsys.readouterr().out
    assert "note     [red] and [/nothing]" in shown
    assert "ad-hoc run (it has a note)" in shown
    print_summaries([make_summary(case=AS_USUAL)], "table")
    assert "ad hoc" not in capsys.readouterr().out
