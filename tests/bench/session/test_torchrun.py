"""Ranks that torchrun starts: what they refuse in one line, and a run by torchrun that is shown as any other."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.case import Case
from bench.errors import Misuse
from bench.session.torchrun import main, read_case, read_place
from bench.store.run_dir import begin, load
from tests.bench.made.examples import make_case, make_machine, small_case

VARIABLES = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def written(folder: Path, *documents: object) -> Path:
    """A file as `--dry-run --format json` prints it."""
    path = folder / "cases.json"
    path.write_bytes(msgspec.json.encode(list(documents)))
    return path


def document(case: Case, **changes: Any) -> dict[str, object]:
    fields = msgspec.to_builtins(case)
    return {"case": {**fields, **changes}, "key": case.key()}


def test_the_variables_of_torchrun_give_a_rank_its_place() -> None:
    place = read_place(VARIABLES)
    assert (place.rank, place.local_rank, place.ranks, place.host, place.port) == (1, 1, 2, "127.0.0.1", 29500)


@pytest.mark.parametrize(("said", "has_store"), [("True", True), ("False", False), (None, False)])
def test_rank_0_hosts_the_store_unless_torchrun_does(said: str | None, has_store: bool) -> None:
    variables = {name: value for name, value in VARIABLES.items() if name != "TORCHELASTIC_USE_AGENT_STORE"}
    assert (
        read_place(variables | ({} if said is None else {"TORCHELASTIC_USE_AGENT_STORE": said})).has_store is has_store
    )


@pytest.mark.parametrize(("here", "is_one_node"), [("2", True), ("1", False)])
def test_ranks_are_on_one_node_where_torchrun_started_all_of_them_here(here: str, is_one_node: bool) -> None:
    assert read_place({**VARIABLES, "LOCAL_WORLD_SIZE": here}).is_one_node is is_one_node


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(Misuse, match=rf"the variable {name} is not set; torchrun sets it: torchrun --nproc-per-node"):
        read_place({key: value for key, value in VARIABLES.items() if key != name})


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"])
@pytest.mark.parametrize("value", ["-1", "two", ""])
def test_a_variable_that_is_no_number_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(Misuse, match=rf'the variable {name} is "{value}"; torchrun sets it to a number'):
        read_place({**VARIABLES, name: value})


def test_a_case_is_read_from_a_dry_run(tmp_path: Path) -> None:
    case = make_case("ring_attention", 4)
    assert read_case(written(tmp_path, document(case))) == case


def test_a_case_is_read_from_the_folder_of_a_run(tmp_path: Path) -> None:
    case = make_case("fsdp")
    with_lock = begin(case, make_machine(), tmp_path)
    with_lock.close()
    assert read_case(with_lock.folder / "case.json") == case


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a case file"),
        (b"{}", "is not a case file"),
        (b"[{}]", "is not a case file"),
        (b'{"schema_version": 1, "case": {"strategy": "ddp"}}', "is not a case file"),
        (b"\xff\xfe", "is not a case file"),
        (b"[" * 100_000, "is not a case file"),
        (b"[]", "holds 0 cases, but torchrun runs one"),
        (b'{"schema_version": 99}', "schema version 99 is newer than 1"),
    ],
)
def test_a_file_that_is_no_case_is_refused_by_name(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_bytes(content)
    with pytest.raises(Misuse, match=said) as error:
        read_case(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_case_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"case file .*/none\.json cannot be read: No such file"):
        read_case(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"strategy": "dpp"}, 'strategy "dpp" is unknown; did you mean "ddp"'),
        ({"version": 99}, "has version 99 of ddp, this program has"),
        ({"options": {}}, "option [a-z_]+ of ddp is missing or unknown"),
        ({"threads": 0}, "threads is 0; it must be 1 or more"),
    ],
)
def test_a_case_that_cannot_be_run_here_is_refused(changes: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=said):
        read_case(written(tmp_path, document(make_case(), **changes)))


def test_a_file_of_two_cases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"holds 2 cases, but torchrun runs one; leave out --with-baseline"):
        read_case(written(tmp_path, document(make_case()), document(make_case("single", 1))))


def _refused(folder: Path, case: Path, monkeypatch: pytest.MonkeyPatch, **variables: str) -> int:
    for name, value in {**VARIABLES, **variables}.items():
        monkeypatch.setenv(name, value)
    return main([str(case), "--folder", str(folder)])


def test_another_number_of_ranks_than_the_case_s_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    case = written(tmp_path, document(make_case(ranks=2)))
    assert _refused(tmp_path / "run", case, monkeypatch, WORLD_SIZE="4") == 2
    assert capfd.readouterr().err == (
        f"WORLD_SIZE is 4, but {case} has 2 ranks; torchrun --nproc-per-node 2 -m bench.session.torchrun CASE.json"
        " --folder FOLDER\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("rank", "made"), [("1", "rank1.jsonl"), ("0", "rank0.jsonl"), ("0", "case.json")])
def test_a_folder_that_holds_a_run_is_refused_and_left_as_it_is(
    rank: str, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / made).write_text("earlier\n")
    assert _refused(folder, written(tmp_path, document(make_case())), monkeypatch, RANK=rank) == 2
    assert (
        capfd.readouterr().err == f"{folder}/{made} exists already, and a folder holds one run; choose a new --folder\n"
    )
    assert [path.name for path in folder.iterdir()] == [made]
    assert (folder / made).read_text() == "earlier\n"


@pytest.mark.slow
def test_a_run_by_torchrun_is_shown_as_any_other(tmp_path: Path) -> None:
    case = written(tmp_path, document(replace(small_case(trace_steps=1), trials=3)))
    folder = tmp_path / "by_torchrun"
    subprocess.run(
        [
            *(sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("-m", "bench.session.torchrun", str(case), "--folder", str(folder)),
        ],
        check=True,
        timeout=120,
    )
    summary = load(folder)
    assert (summary.run, summary.outcome, summary.cause) == ("by_torchrun", "done", None)
    assert (summary.trials_done, summary.case.trials, summary.case.ranks) == (1, 1, 2)
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "bench", "show", str(folder), "--format", "json"],
        check=True,
        stdout=subprocess.PIPE,
        timeout=60,
    )
    (found,) = json.loads(shown.stdout)
    assert {one["metric"] for one in found["estimates"]} >= {
        "observatory_run_step_seconds",
        "observatory_run_tokens_per_second",
    }


@pytest.mark.slow
def test_a_rank_by_hand_needs_no_torchrun_beside_its_variables(tmp_path: Path) -> None:
    case = written(tmp_path, document(small_case("single", 1)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bench.runner.torchrun", str(case), "--folder", str(tmp_path / "run")],
        env={
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        },
        check=False,
        timeout=120,
    )
    assert done.returncode == 0
    assert load(tmp_path / "run").outcome == "done"
