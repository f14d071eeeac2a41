"""`observatory run` before it runs: help in groups, what it would do, and what it says while it does."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bench import case
from bench.cli import main
from bench.cli.options import ENGINE_NAMES
from bench.cli.run.command import GROUPS, command
from bench.engines.registry import ENGINES
from bench.errors import CASE_FAILED, FINE, MISUSE
from bench.serve.server import PORT as SERVED_PORT
from bench.session.case_args import CaseArgs
from bench.store.files import RUNS_VARIABLE, STORE_VARIABLE
from bench.store.history import History
from tests.bench.made.examples import make_machine, make_summary
from workloads.registry import SPECS

DRY = ["run", "--device=cpu", "--dry-run"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home, empty."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def test_each_option_stands_in_one_group_of_the_help() -> None:
    options = [parameter.name for parameter in command.params if isinstance(parameter, click.Option)]
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(str(name) for name in options)
    said = CliRunner().invoke(command, ["--help"]).output
    places = [said.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)


def test_what_help_does_not_load_is_as_it_is_told() -> None:
    assert list(ENGINES) == list(ENGINE_NAMES)
    defaults = {parameter.name: parameter.default for parameter in command.params}
    assert defaults["port"] == SERVED_PORT
    own = {field.name: field.default for field in fields(CaseArgs) if field.name in case.USUAL}
    assert own == {name: defaults[name] for name in own} == case.USUAL
    assert defaults["seed"] == case.SEED


@pytest.mark.parametrize("strategy", [spec.name for spec in SPECS])
def test_a_dry_run_says_what_each_rank_would_hold_and_leaves_nothing(
    strategy: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*DRY, strategy, "--format", "json"]) == FINE
    (found,) = json.loads(capsys.readouterr().out)
    assert found["case"]["strategy"] == strategy
    assert [row["rank"] for row in found["ranks"]] == list(range(found["case"]["ranks"]))
    assert all(row["at_least"] >= 0 for row in found["ranks"])
    assert list(home.iterdir()) == []


def test_a_dry_run_for_people_names_ranks_bytes_and_messages(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*DRY, "ddp", "--ranks", "1,2"]) == FINE
    said = capsys.readouterr()
    rows = [" ".join(line.split()) for line in said.out.splitlines()]
    assert any(row.startswith("1 data 1 4 3.50 MiB 3.50 MiB 7.01 MiB ") for row in rows)
    assert "a step's all_reduce over data: 3.50 MiB, 9 calls" in rows
    assert rows[-1] == "nothing was started, and nothing written"
    assert said.err == ""
    assert list(home.iterdir()) == []


def test_a_dry_run_shows_all_that_a_config_json_set(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 320,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "tie_word_embeddings": True,
    }
    path = home / "config.json"
    path.write_text(json.dumps(config))
    assert main.run([*DRY, "fsdp", "--shape", str(path), "--sequence", "64"]) == FINE
    printed = capsys.readouterr().out
    shape = (
        "fsdp on 2: shape 3 layers, width 48, heads 4 (2 for keys and values), MLP 96, vocabulary 320, sequence 64:"
        " 84,816 parameters, head_dim 16, norm_epsilon 1e-06, rope_theta 10000, rope_scaling linear:2, is_tied true"
    )
    assert shape in printed
    assert "fsdp on 2: a step has 8 sequences of 64 tokens" in printed


def test_a_dry_run_names_the_checkpoint_and_why_a_peak_is_not_predicted(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*DRY, "fsdp", "--precision=bf16", "--save-every=5", "--save-mode=async"]) == FINE
    printed = capsys.readouterr().out
    assert "rank that holds most: not predicted: the cost model of activations covers weights=autocast only" in printed
    assert "a checkpoint: 10.5 MiB over all ranks, async, after every 5 measured steps; each replaces the" in printed


def test_a_dry_run_refuses_what_a_run_would(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*DRY, "ddp", "--ranks", "3"]) == MISUSE
    assert "batch 8 cannot be shared equally by 3 data ranks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "line"),
    [
        ("nobody", 'run "nobody" is unknown'),
        ("run-a", "baseline (ddp, ranks 2) does not have fewer ranks than the run"),
    ],
)
def test_a_dry_run_refuses_a_baseline_that_is_none(
    run: str, line: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"sqlite:///{home / 'history.sqlite'}"
    with History(store) as history:
        history.add(make_summary("run-a"), make_machine())
    assert main.run([*DRY, "ddp", "--ranks", "2", "--baseline", run, "--store", store]) == MISUSE
    assert line in capsys.readouterr().err


def test_a_dry_run_of_a_check_tells_of_all_that_it_compares(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*DRY, "ddp", "--ranks", "2", "--check-convergence", "--format", "json"]) == FINE
    found = json.loads(capsys.readouterr().out)
    assert [document["case"]["strategy"] for document in found] == ["single", "single", "ddp"]
    assert list(home.iterdir()) == []


def test_a_dry_run_shows_no_password(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "postgresql://me:hush@db/runs")
    assert main.run([*DRY, "ddp"]) == FINE
    said = capsys.readouterr()
    assert "hush" not in said.out + said.err
    assert "@db/runs" in said.out


@pytest.mark.parametrize("arguments", [["show"], ["run", "ddp", "--device=cpu"], ["show", "x"], ["serve", "--port=0"]])
def test_a_variable_that_names_no_store_is_told_by_name_and_without_its_password(
    arguments: list[str], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "mysql://me:hush@localhost:1/runs")
    assert main.run(arguments) == MISUSE
    said = capsys.readouterr()
    assert "(env var: 'OBSERVATORY_STORE'): store mysql://me:***@localhost:1/runs: mysql is not supported" in said.err
    assert "hush" not in said.out + said.err


def test_runs_and_history_are_where_the_environment_says(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, f"sqlite:///{home / 'told.sqlite'}")
    monkeypatch.setenv(RUNS_VARIABLE, str(home / "told"))
    for name in ("told", "said"):
        with History(f"sqlite:///{home / name}.sqlite") as history:
            history.add(make_summary(f"run-{name}"), make_machine())
    assert main.run(["show", "run-"]) == FINE
    assert "run-told: done" in capsys.readouterr().out
    assert not (home / "parallel-observatory").exists()
    assert main.run([*DRY, "ddp"]) == FINE
    assert f"results go to {home / 'told'} and sqlite:///{home / 'told.sqlite'}" in capsys.readouterr().out
    assert main.run(["show", "run-", "--store", f"sqlite:///{home / 'said.sqlite'}"]) == FINE
    assert "run-said: done" in capsys.readouterr().out  # What is said goes first.


def test_to_be_quiet_and_verbose_at_once_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*DRY, "ddp", "-q", "-v"]) == MISUSE
    assert "--quiet and --verbose exclude each other" in capsys.readouterr().err


def test_a_fire_drill_says_that_it_ended_as_injected_and_nothing_of_what_is_served(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--layers=1", "--width=16", "--heads=2", "--kv-heads=1", "--mlp-width=32", "--vocabulary=32"]
    drill = ["--inject=raise@0:4", "--trace-every=1", "--trials=1", "--steps=5", "--warm-up=1", "--port=0"]
    line = ["run", "single", "--device=cpu", "--sequence=8", "--batch=2", f"--runs={home}/runs", *small, *drill]
    assert main.run(line) == CASE_FAILED
    said = capsys.readouterr().err
    (failed,) = [line for line in said.splitlines() if line.startswith("single on 1: failed")]
    assert failed.startswith("single on 1: failed, as injected (raise@0:4): rank 0 failed with ")
    assert "USDT:" not in said
    assert "keeps showing results" not in said
    (run,) = (home / "runs").glob("*-single-*")
    assert "USDT:" in (run / "rank0.err").read_text()  # It was printed, and only left out of what is shown.
    assert main.run(["show", run.name, f"--runs={home}/runs"]) == FINE
    assert "as injected (raise@0:4)" in capsys.readouterr().out
