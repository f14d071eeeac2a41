"""Judgements on levers as people and programs read them."""

from __future__ import annotations

import csv
import io
import json

import pytest
from rich.console import Console

from bench.results.estimate import estimate, ratio
from bench.suite.file import Lever
from bench.suite.form.tables import Claim
from bench.suite.levers import Judgement
from bench.suite.report import LEVER_COLUMNS, print_levers
from collectors.metrics.results import RUN_PEAK_MEMORY_BYTES, RUN_STEP_SECONDS

TIME = Claim(metric=RUN_STEP_SECONDS.name, low=1.25, high=1.40, text="about a third more time")
MEMORY = Claim(
    metric=RUN_PEAK_MEMORY_BYTES.name, labels={"account": "allocator"}, low=0.3, high=0.4, text="60 to 70 % less memory"
)
LEVER = Lever(name="checkpointing", off="plain", on="checkpointed", claims=(TIME, MEMORY))
OFF, ON = estimate(RUN_STEP_SECONDS, (1.0, 1.02)), estimate(RUN_STEP_SECONDS, (1.33, 1.35))
JUDGED = Judgement(lever=LEVER, claim=TIME, off=OFF, on=ON, ratio=ratio(ON, OFF), verdict="as claimed")
ABSENT = Judgement(lever=LEVER, claim=MEMORY, reason="plain failed: rank 0 was killed")


def _lines(*judgements: Judgement) -> list[str]:
    text = io.StringIO()
    print_levers(judgements, "table", Console(file=text, width=200))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_a_table_has_what_is_claimed_what_was_measured_and_the_verdict() -> None:
    _, row = _lines(JUDGED)
    assert row.startswith("checkpointing  1.01 s")
    for part in ("1.34 s", "1.33 [", "[1.25, 1.40]", "as claimed", "about a third more time"):
        assert part in row


def test_a_claim_that_cannot_be_judged_is_absent_with_its_reason_below() -> None:
    _, row, line = _lines(ABSENT)
    assert row.split()[:4] == ["checkpointing", "-", "-", "-"]
    assert line == "absent: checkpointing: plain failed: rank 0 was killed"


def test_claims_with_the_same_reason_share_a_line() -> None:
    assert _lines(ABSENT, ABSENT)[3:] == ["absent: checkpointing: plain failed: rank 0 was killed"]


def test_json_has_null_for_what_is_absent(capsys: pytest.CaptureFixture[str]) -> None:
    print_levers((JUDGED, ABSENT), "json")
    judged, absent = json.loads(capsys.readouterr().out)
    assert tuple(judged) == LEVER_COLUMNS
    assert (judged["verdict"], judged["reason"]) == ("as claimed", None)
    assert (judged["off_median"], judged["on_median"]) == (1.01, 1.34)
    assert judged["ratio"] == pytest.approx(1.34 / 1.01)
    assert judged["ratio_low"] < judged["ratio"] < judged["ratio_high"]
    assert (absent["verdict"], absent["ratio"]) == (None, None)
    assert absent["reason"] == "plain failed: rank 0 was killed"
    assert absent["labels"] == {"account": "allocator"}


def test_csv_has_a_row_for_each_claim(capsys: pytest.CaptureFixture[str]) -> None:
    print_levers((JUDGED, ABSENT), "csv")
    judged, absent = csv.DictReader(capsys.readouterr().out.splitlines())
    assert (judged["lever"], judged["verdict"], judged["claimed_high"]) == ("checkpointing", "as claimed", "1.4")
    assert (absent["verdict"], absent["labels"]) == ("", "account=allocator")
