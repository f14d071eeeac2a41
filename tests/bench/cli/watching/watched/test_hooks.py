"""What the hooks see of real loops of torch, each in `scenarios.py`, which one process runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.session.watched.session import environment, write_hook

MS = 1_000_000
SCENARIOS = Path(__file__).with_name("scenarios.py")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("scenarios")
    done = subprocess.run(
        [sys.executable, str(SCENARIOS), str(folder)],
        env=environment({"OMP_NUM_THREADS": "1"}, write_hook(folder)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = json.loads((folder / "seen.json").read_text())
    return loaded


def _column(seen: dict[str, Any], scenario: str, name: str) -> list[Any]:
    (lines,) = seen[scenario].values()
    return [value for line in lines if line["kind"] == "steps" for value in line[name] or []]


def _steps(seen: dict[str, Any], scenario: str) -> int:
    return len(_column(seen, scenario, "step_ns"))


@pytest.mark.slow
def test_python_starts_the_hooks_by_itself_and_no_finder_of_ours_is_left(seen: dict[str, Any]) -> None:
    assert seen["process"]["has_hook"]
    assert "_TorchFinder" not in seen["process"]["finders"]


def test_two_optimizers_make_one_step(seen: dict[str, Any]) -> None:
    assert _steps(seen, "two_optimizers") == 4


def test_each_step_counts_where_the_optimizer_is_made_again(seen: dict[str, Any]) -> None:
    assert _steps(seen, "remade_optimizers") == 12


def test_accumulated_gradients_make_one_step(seen: dict[str, Any]) -> None:
    assert _steps(seen, "accumulation") == 4


def test_a_closure_s_sleep_is_forward(seen: dict[str, Any]) -> None:
    assert _steps(seen, "closure") == 3
    assert all(forward_ns >= 20 * MS for forward_ns in _column(seen, "closure", "forward_ns"))


@pytest.mark.parametrize("scenario", ["scaler", "named_scaler"])
def test_a_step_that_the_gradscaler_skips_counts_and_is_marked(scenario: str, seen: dict[str, Any]) -> None:
    assert _column(seen, scenario, "skipped") == [False, True, False, False]


def test_a_fused_optimizer_hides_which_step_was_skipped_but_not_the_step(seen: dict[str, Any]) -> None:
    assert _steps(seen, "fused_scaler") == 4


def test_zero_redundancy_optimizer_makes_one_step(seen: dict[str, Any]) -> None:
    assert _steps(seen, "zero_redundancy") == 3


def test_a_model_compiled_as_a_whole_stays_one_graph_and_has_steps(seen: dict[str, Any]) -> None:
    assert _steps(seen, "compiled_whole") == 3


def test_a_compiled_optimizer_has_its_steps_or_the_run_says_that_none_were_seen(seen: dict[str, Any]) -> None:
    (lines,) = seen["compiled_optimizer"].values()
    notes = [line["text"] for line in lines if line["kind"] == "note"]
    assert (_steps(seen, "compiled_optimizer"), len(notes)) in ((3, 0), (0, 1))


def test_backward_that_a_compiled_function_calls_is_timed(seen: dict[str, Any]) -> None:
    assert _column(seen, "compiled_backward", "backward_calls") == [1, 1, 1]


def test_a_step_compiled_as_a_whole_counts_or_the_run_says_that_none_were_seen(seen: dict[str, Any]) -> None:
    (lines,) = seen["compiled_step"].values()
    notes = [line["text"] for line in lines if line["kind"] == "note"]
    assert (_steps(seen, "compiled_step"), [note.partition(":")[0] for note in notes]) in (
        (3, []),
        (0, ["no steps seen"]),
    )


def test_sleeps_are_in_the_phase_that_sleeps(seen: dict[str, Any]) -> None:
    assert all(data_ns >= 20 * MS for data_ns in _column(seen, "data_and_phases", "data_ns"))
    assert all(forward_ns >= 30 * MS for forward_ns in _column(seen, "data_and_phases", "forward_ns"))


def test_data_workers_are_no_ranks(seen: dict[str, Any]) -> None:
    assert list(seen["workers_of_data"]) == ["watch_rank0.jsonl"]
    assert _steps(seen, "workers_of_data") == 3


def test_a_forked_child_of_a_rank_is_no_rank(seen: dict[str, Any]) -> None:
    assert _steps(seen, "children") == 2


def test_a_model_and_an_optimizer_are_pickled_without_anything_of_ours(seen: dict[str, Any]) -> None:
    assert _steps(seen, "saved") == 1


def test_training_without_an_optimizer_says_that_no_steps_were_seen(seen: dict[str, Any]) -> None:
    (lines,) = seen["no_optimizer"].values()
    assert "no steps seen" in lines[1]["text"]


def test_marked_steps_bear_their_tokens(seen: dict[str, Any]) -> None:
    assert _column(seen, "marked", "tokens") == [100, 100, 100]
    assert [line["rule"] for line in seen["marked"]["watch_rank0.jsonl"] if line["kind"] == "steps"] == ["mark"]


def test_deepspeed_s_engine_is_followed_if_it_is_imported_after_the_first_steps(seen: dict[str, Any]) -> None:
    (lines,) = seen["engine_later"].values()
    found = [(line["rule"], len(line["step_ns"])) for line in lines if line["kind"] == "steps"]
    assert found == [("optimizer", 2), ("deepspeed", 3)]


def test_the_script_s_own_profiler_keeps_its_events(seen: dict[str, Any]) -> None:
    assert _steps(seen, "own_profiler") == 2


def test_the_first_line_says_who_the_rank_is(seen: dict[str, Any]) -> None:
    (lines,) = seen["two_optimizers"].values()
    begin = lines[0]
    assert (begin["kind"], begin["rank"], begin["world_size"], begin["backend"]) == ("begin", 0, 1, "gloo")
    assert begin["groups"] == [[0]]
    assert begin["script"] == str(SCENARIOS)
