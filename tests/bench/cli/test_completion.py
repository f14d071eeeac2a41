"""A shell completes strategies, options with their values, runs and traces; without torch, and without writing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from bench.cli import main
from bench.cli.completion import COMPLETION_VARIABLE, PROGRAM, SHELLS
from bench.errors import OUR_BUG
from bench.store.files import STORE_VARIABLE
from bench.store.history import History
from tests.bench.made.examples import make_machine, make_summary
from workloads.registry import SPECS, spec_of


def _completed(*words: str) -> list[str]:
    """What the last word may become."""
    completer = ShellComplete(main.observatory, {}, PROGRAM, COMPLETION_VARIABLE)
    return [item.value for item in completer.get_completions(list(words[:-1]), words[-1])]


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A history of two runs, of which nobody may write any more."""
    url = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with History(url) as history:
        for run in ("20260101-ddp-a", "20260102-fsdp-b"):
            history.add(make_summary(run), make_machine())
    return url


def test_commands_and_strategies_are_completed() -> None:
    assert _completed("") == list(main.COMMANDS)
    assert _completed("run", "") == [spec.name for spec in SPECS]
    assert _completed("list", "zero") == ["zero1", "zero2", "zero_bubble"]
    assert _completed("show", "--strategy", "dd") == ["ddp"]


def test_options_of_the_strategy_that_was_named_are_completed_and_their_values() -> None:
    assert _completed("run", "ddp", "--option", "") == [f"{option.name}=" for option in spec_of("ddp").options]
    assert _completed("run", "ddp", "--option", "compress_") == ["compress_rank="]
    assert _completed("run", "ddp", "--ranks", "2", "--option", "overlap=") == ["overlap=true", "overlap=false"]
    assert _completed("run", "ddp", "--option", "compress=b") == ["compress=bf16"]
    assert _completed("run", "--option", "x") == []


def test_runs_of_the_history_that_is_named_are_completed(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = ["20260101-ddp-a", "20260102-fsdp-b"]
    assert sorted(_completed("show", "--store", store, "2026")) == runs
    monkeypatch.setenv(STORE_VARIABLE, store)
    assert sorted(_completed("show", "2026")) == runs
    assert _completed("run", "ddp", "--baseline", "20260102") == runs[1:]
    assert _completed("analyse", "summary", "20260101") == runs[:1]


def test_nothing_is_written_and_a_history_that_is_not_there_is_none(store: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    _completed("show", "--store", store, "2026")
    assert _completed("show", "--store", f"sqlite:///{tmp_path / 'none.sqlite'}", "2026") == ["2026"]  # A folder's.
    assert _completed("show", "--store", "no url", "2026") == ["2026"]
    assert sorted(tmp_path.iterdir()) == before


def test_traces_are_left_to_the_shell_where_some_begin_so(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").touch()
    completer = ShellComplete(main.observatory, {}, PROGRAM, COMPLETION_VARIABLE)
    (item,) = completer.get_completions(["analyse", "summary"], str(tmp_path / "ra"))
    assert item.type == "file"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_calls_us(shell: str) -> None:
    answer = CliRunner().invoke(main.observatory, ["completion", shell], catch_exceptions=False)
    assert COMPLETION_VARIABLE in answer.stdout
    assert f"{shell}_complete" in answer.stdout


def test_bash_completes_names_and_values_without_torch_and_writes_nothing(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    program = tmp_path / "bin" / "observatory"
    program.parent.mkdir()
    code = (
        "import sys; from bench.cli.main import run; run(sys.argv[1:]); 'torch' in sys.modules and print('plain,torch')"
    )
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -c "{code}" "$@"\n')
    program.chmod(0o755)
    script = """
        source <(observatory completion bash)
        ask() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _observatory_completion observatory 2> /dev/null
            echo "${COMPREPLY[*]}"
        }
        ask observatory run zero_
        ask observatory run ddp --option compress_
        ask observatory run ddp --option overlap =
        ask observatory run ddp --option overlap = t
    """
    environment = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "XDG_DATA_HOME": str(tmp_path / "home"),
    }
    ended = subprocess.run([bash, "--norc", "-c", script], capture_output=True, text=True, timeout=120, env=environment)
    assert ended.stdout.splitlines() == ["zero_bubble", "compress_rank=", "true false", "true"], ended.stderr
    assert not (tmp_path / "home").exists()


def test_a_mistake_of_ours_while_a_word_is_completed_writes_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv(COMPLETION_VARIABLE, "bash_complete")
    monkeypatch.delenv("COMP_WORDS", raising=False)  # No shell asks like this.
    assert main.run([]) == OUR_BUG
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
    assert list(tmp_path.iterdir()) == []
