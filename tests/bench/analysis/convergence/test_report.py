"""A convergence check as it is printed: few steps, a sentence a cause, and all of it as JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from bench.analysis.convergence.check import ConvergenceVerdict, Losses
from bench.analysis.convergence.evidence import RootCause
from bench.analysis.convergence.report import STEPS_SHOWN, lines, print_verdict
from tests.bench.made.examples import make_case

CASE = make_case("ddp", 2)
CAUSE = RootCause(cause="sampler_epoch", step=7, text="rank 0 read those of step 0 again", next_move="call set_epoch")


def make_verdict(
    steps: int = 3, parted_at: int | None = None, *causes: RootCause, is_explained: bool = True
) -> ConvergenceVerdict:
    losses = tuple(
        Losses(
            step=step,
            one_rank=4.0,
            all_ranks=4.0 if parted_at is None or step < parted_at else 4.4,
            tolerance_ratio=5e-6,
        )
        for step in range(steps)
    )
    return ConvergenceVerdict(
        outcome="agrees" if parted_at is None and not causes else "disagrees",
        parted_at=parted_at,
        losses=losses,
        causes=causes,
        is_explained=is_explained,
        ruled_out=("gradients of step 0: the same",),
        not_examined=("replicas: fewer than two",),
        clip=0.1,
        clipped_steps=steps - 1,
    )


def printed(verdict: ConvergenceVerdict) -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    print_verdict(verdict, CASE, "table", console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_agreement_is_said_with_the_widest_gap() -> None:
    verdict = make_verdict()
    near = replace(
        verdict, losses=(*verdict.losses[:1], replace(verdict.losses[1], all_ranks=4.000004), *verdict.losses[2:])
    )
    first = next(iter(lines(near, CASE)))
    assert first == (
        "agrees: ddp on 2 ranks trains as one rank does, in all 3 steps; losses are at most 1.0e-06 apart, in step 1"
    )


def test_each_cause_is_one_line_with_its_step_and_the_next_move() -> None:
    said = list(lines(make_verdict(9, 7, CAUSE), CASE))
    assert said[0].startswith(
        "disagrees: losses of ddp on 2 ranks and of one rank diverge in step 7; they differ by 1.0e-01"
    )
    assert said[1] == ("cause: sampler_epoch, from step 7: rank 0 read those of step 0 again. Next: call set_epoch")
    assert said[2:4] == ["ruled out: gradients of step 0: the same", "not examined: replicas: fewer than two"]


def test_a_parting_that_nothing_explains_is_unknown() -> None:
    said = list(lines(make_verdict(9, 7, is_explained=False), CASE))
    assert said[1].startswith("cause: unknown: no examined quantity differs up to step 7. Next: ")


def test_whether_gradients_were_clipped_is_said_with_the_number_of_steps() -> None:
    (said,) = (line for line in lines(make_verdict(9), CASE) if line.startswith("clip: "))
    assert said == "clip: the gradient norm of the one rank exceeded 0.1 and was clipped in 8 of 9 steps"
    (said,) = (line for line in lines(replace(make_verdict(), clip=0.0), CASE) if line.startswith("clip: "))
    assert said == "clip: 0, so no gradient was clipped"


def test_a_cause_without_a_parting_is_a_disagreement_all_the_same() -> None:
    first = next(iter(lines(make_verdict(3, None, CAUSE), CASE)))
    assert first.startswith("disagrees: losses of ddp on 2 ranks agree in all 3 steps")


def test_a_long_check_shows_few_steps_and_those_where_losses_part() -> None:
    rows = [line.split() for line in printed(make_verdict(100, 50)) if line[:4].strip().isdigit()]
    assert len(rows) <= STEPS_SHOWN + 3
    shown = [int(row[0]) for row in rows]
    assert {0, 49, 50, 99} <= set(shown)
    assert [step for step, row in zip(shown, rows, strict=True) if row[-1] == "parts"] == [
        step for step in shown if step >= 50
    ]


def test_json_has_every_step_and_the_tolerance(capsys: pytest.CaptureFixture[str]) -> None:
    print_verdict(make_verdict(5, 2, CAUSE), CASE, "json")
    record = json.loads(capsys.readouterr().out)
    assert (record["strategy"], record["ranks"], record["outcome"], record["parted_at"]) == ("ddp", 2, "disagrees", 2)
    assert [row["step"] for row in record["losses"]] == [0, 1, 2, 3, 4]
    assert record["losses"][0]["tolerance_ratio"] == 5e-6
    assert record["causes"][0]["next_move"] == "call set_epoch"


def test_csv_has_a_row_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    print_verdict(make_verdict(5), CASE, "csv")
    assert [row["step"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == ["0", "1", "2", "3", "4"]
