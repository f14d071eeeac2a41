"""The kind "watched": hidden from what run, suites and choose offer, and readable as every other run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.case import check, find_spec, settings_of, why_ad_hoc
from bench.errors import Misuse
from bench.store import run_dir
from bench.store.summary import decode, encode, series_of
from tests.bench.results.watched.made_ranks import made_steps, write_run
from workloads.registry import SPECS, is_known, spec_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "20261120-llama", made_steps("ddp"), watch={"tags": {"mix": "b", "data": "c 4"}})


def test_it_is_known_and_offered_nowhere() -> None:
    assert spec_of("watched").kind == "watched"
    assert is_known("watched")
    assert "watched" not in {spec.name for spec in SPECS}
    with pytest.raises(
        Misuse, match=r"user's own programs, and cannot be run by name; `observatory watch --name NAME -- COMMAND`"
    ):
        find_spec("watched")


def test_its_case_says_what_is_known_and_cannot_be_run(run: Path) -> None:
    case = run_dir.load(run).case
    assert (case.title, case.precision, case.model) == ("llama-sft on 2", "unknown", None)
    assert case.setting == "cpu, backend gloo, torch 2.13.0, python 3.11"
    assert settings_of(case) == ("data=c_4", "mix=b")
    assert not why_ad_hoc(case, run_dir.case_file(run).purpose)
    with pytest.raises(Misuse, match="observatory watch"):
        check(case)


def test_its_series_is_of_name_ranks_groups_versions_and_tags(run: Path) -> None:
    summary = run_dir.load(run)
    case = summary.case
    series = {series_of(case, summary.hardware)}
    for option in ("name", "groups", "backend", "torch", "python", "tags"):
        series.add(series_of(replace(case, options={**case.options, option: "other"}), summary.hardware))
    series |= {series_of(replace(case, ranks=4), summary.hardware), series_of(case, "another machine")}
    assert len(series) == 9
    assert series_of(replace(case, steps=7, warm_up=1), summary.hardware) in series


def test_a_summary_keeps_its_details_and_one_without_is_read(run: Path) -> None:
    summary = run_dir.load(run)
    assert summary.watched is not None
    assert decode(encode(summary)) == summary
    older = encode(summary).replace(b'"watched":{', b'"left_out":{', 1)
    assert decode(older).watched is None


def test_a_folder_without_case_and_machine_is_read_from_what_ranks_report(run: Path) -> None:
    assert not (run / "case.json").exists()
    summary = run_dir.load(run)
    assert (summary.run, summary.outcome, summary.trials_done) == ("20261120-llama", "done", 1)
    run_dir.settle_watched(run)
    assert run_dir.case_file(run).case.options == summary.case.options
    assert run_dir.load(run) == replace(summary, ended_ns=run_dir.load(run).ended_ns)


@pytest.mark.parametrize(
    ("watch", "outcome", "words"),
    [
        ({"exit_code": 3}, "failed", "the command ended with code 3"),
        ({"exit_code": None, "signal": 9}, "failed", "the command was ended by signal 9"),
        ({"exit_code": None, "signal": 2}, "interrupted", "the command was ended by signal 2"),
        ({"exit_code": None, "end_unix_s": None}, "interrupted", "the runner died before the run's end"),
    ],
)
def test_how_the_command_ended_is_the_outcome(
    tmp_path: Path, watch: dict[str, object], outcome: str, words: str
) -> None:
    summary = run_dir.load(write_run(tmp_path / "run", made_steps("ddp"), watch=watch))
    assert summary.outcome == outcome
    assert summary.cause is not None
    assert summary.cause.text == words
