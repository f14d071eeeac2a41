"""`observatory analyse flight-recorder` says in words who is missing, and refuses what is no dump in one line."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench.cli.analyse import command
from bench.errors import Misuse
from tests.collectors.made_nccl_record import MadeRecord


def _analyse(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["flight-recorder", *map(str, arguments)])


def _refusal(*arguments: object) -> str:
    refused = _analyse(*arguments)
    assert isinstance(refused.exception, Misuse), refused.output
    assert refused.stdout == ""
    return str(refused.exception)


def _late(folder: Path, name: str = "nccl_trace_rank_{}", *, late: int = 1) -> Path:
    """Write dumps of two ranks, of which one did not enter the second all_reduce."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(2):
        record = MadeRecord().collective("nccl:all_reduce")
        if rank != late:
            record.collective("nccl:all_reduce", state="started")
        (folder / name.format(rank)).write_bytes(record.json())
    return folder


WORDS = "rank 1 has not entered call 2 of group 0 (default_pg), all_reduce of 4 Float; rank 0 has"


def test_the_first_line_names_the_rank_that_is_missing(tmp_path: Path) -> None:
    _late(tmp_path)
    by_folder = _analyse(tmp_path)
    assert by_folder.exit_code == 0, by_folder.output
    assert by_folder.stdout.splitlines()[0] == WORDS
    files = sorted(tmp_path.iterdir())
    assert _analyse(*files).stdout == by_folder.stdout
    assert "has not entered" in _analyse(*files, "--rank", 1, "--rank", 0).stdout.replace("rank 0", "")


def test_a_watched_job_is_found_by_its_name(tmp_path: Path) -> None:
    for day, late in (("26", 0), ("27", 1)):
        run = _late(tmp_path / f"202611{day}-120000-llama-sft-abc123", "watch_rank{}.flight.pickle", late=late)
        for name in ("watch.json", "machine.json", "watch_rank0.jsonl"):
            (run / name).write_text("{}")
    assert _analyse("llama-sft", "--runs", tmp_path).stdout.splitlines()[0] == WORDS
    assert "does not exist" in _refusal("llama", "--runs", tmp_path)


@pytest.mark.parametrize("is_file", [False, True])
def test_a_folder_or_file_without_dumps_does_not_hide_the_job_of_its_name(
    is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _late(tmp_path / "runs" / "20261128-100000-train-0a1b2c", "watch_rank{}.flight.pickle")
    for name in ("watch.json", "machine.json", "watch_rank0.jsonl"):
        (run / name).write_text("{}")
    if is_file:
        (tmp_path / "train").write_text("#!/bin/sh\n")
    else:
        (tmp_path / "train").mkdir()
    monkeypatch.chdir(tmp_path)
    assert _analyse("train", "--runs", "runs").stdout.splitlines()[0] == WORDS


def test_a_dump_comes_before_the_job_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _late(tmp_path / "runs" / "20261128-100000-dump0-0a1b2c", "watch_rank{}.flight.pickle", late=0)
    _late(tmp_path, "dump{}")
    monkeypatch.chdir(tmp_path)
    assert _analyse("dump0", "dump1", "--runs", "runs").stdout.splitlines()[0] == WORDS


def test_a_watched_job_whose_steps_never_stopped_has_none(tmp_path: Path) -> None:
    run = tmp_path / "20261127-120000-llama-sft-abc123"
    run.mkdir()
    for name in ("watch.json", "machine.json", "watch_rank0.jsonl"):
        (run / name).write_text("{}")
    answer = _refusal("llama-sft", "--runs", tmp_path)
    assert f"watched run {run.name} has no Flight Record: a rank writes one when its steps stop" in answer


def test_what_is_no_dump_in_a_folder_is_skipped_and_named(tmp_path: Path) -> None:
    _late(tmp_path)
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"\x80\x02.")
    (tmp_path / "rank0.err").write_text("Traceback")
    (tmp_path / "notes").write_text("")
    answer = _analyse(tmp_path)
    assert answer.stdout.splitlines()[0] == WORDS
    (skipped,) = [line for line in answer.stdout.splitlines() if line.startswith("skipped")]
    assert "nccl_trace_rank_2: the pickle is damaged" in skipped


def test_a_run_means_its_newest_trial_that_left_records(tmp_path: Path) -> None:
    run = tmp_path / "20261127-101500-ddp-0a1b2c"
    older, newer = (_late(run / f"trial{trial}", "rank{}.flight.json", late=late) for trial, late in ((0, 0), (1, 1)))
    os.utime(older, ns=(1, 1))
    os.utime(newer, ns=(2, 2))
    assert _analyse(run.name, "--runs", tmp_path).stdout.splitlines()[0] == WORDS


def test_json_and_csv_hold_what_the_tables_show(tmp_path: Path) -> None:
    _late(tmp_path)
    document = json.loads(_analyse(tmp_path, "--format", "json").stdout)
    differences, ranks = document["tables"]
    assert (differences["title"], differences["rows"][0][:3]) == (WORDS, ["0 (default_pg)", 2, "missing"])
    assert [row[:2] for row in ranks["rows"]] == [[0, 2], [1, 1]]
    (row,) = csv.DictReader(io.StringIO(_analyse(tmp_path, "--format", "csv", "--table", "differences").stdout))
    assert (row["entered"], row["missing"]) == ("0", "1")


def test_ranks_that_agree_are_said_to(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank_{rank}").write_bytes(MadeRecord().collective("nccl:all_reduce").json())
    assert _analyse(tmp_path).stdout.splitlines()[0] == "all ranks entered the same calls and completed them"


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ({0: "all_reduce", 1: "broadcast"}, "rank 0 entered all_reduce of 4 Float and rank 1 entered broadcast of"),
        ({0: "all_reduce"}, "rank 1 left no dump and may have ended; rank 0 waits in call 1 of group 0"),
    ],
)
def test_other_verdicts_in_words(ranks: dict[int, str], words: str, tmp_path: Path) -> None:
    for rank, title in ranks.items():
        record = MadeRecord().collective(f"nccl:{title}", state="started")
        (tmp_path / f"rank_{rank}").write_bytes(record.json())
    assert words in _analyse(tmp_path).stdout.splitlines()[0]


def test_bad_input_is_refused_in_one_line(tmp_path: Path) -> None:
    _late(tmp_path / "good")
    first = tmp_path / "good" / "nccl_trace_rank_0"
    assert "does not exist; name a dump" in _refusal("nowhere")
    assert "are both of rank 0" in _refusal(first, first)
    assert "--rank is given 1 times for 2 dumps" in _refusal(tmp_path / "good", "--rank", 0)
    (tmp_path / "empty").mkdir()
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT=1" in _refusal(tmp_path / "empty")
    (tmp_path / "dump").write_bytes(first.read_bytes())
    assert "its name has no rank" in _refusal(tmp_path / "dump")
    (tmp_path / "rank_0").write_text("nothing")
    assert "neither a pickle nor JSON" in _refusal(tmp_path / "rank_0")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "rank_0").write_text("nothing")
    assert "none of the 1 files is a dump" in _refusal(tmp_path / "bad")
