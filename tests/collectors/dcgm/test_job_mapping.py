"""Runs stand at their GPUs' files for as long as they are shown, and end even when we do not end well."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collectors.dcgm.job_mapping import JobMapping, NoMapping

ROOT = Path(__file__).parents[3]
KILLED_IN_THE_MIDDLE = """
import os, signal, sys
from pathlib import Path
from collectors.dcgm.job_mapping import JobMapping
mapping = JobMapping(Path(sys.argv[1]))
if sys.argv[2:]:
    mapping.show({gpu: {"run-a"} for gpu in sys.argv[2:]})
os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def _mapping(folder: Path) -> Iterator[JobMapping]:
    mapping = JobMapping(folder)
    try:
        yield mapping
    finally:
        mapping.close()


def _jobs(folder: Path) -> dict[str, list[str]]:
    """As dcgm-exporter reads them: files whose names are numbers, or two of them."""
    return {
        path.name: path.read_text().splitlines()
        for path in folder.iterdir()
        if all(part.isdecimal() for part in path.name.split(".", 1))
    }


def _kill_one_that_shows(folder: Path, *gpus: str) -> None:
    command = [sys.executable, "-c", KILLED_IN_THE_MIDDLE, str(folder), *gpus]
    died = subprocess.run(command, cwd=ROOT, check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL


def test_runs_stand_at_the_files_of_their_gpus_and_instances(tmp_path: Path) -> None:
    with _mapping(tmp_path) as mapping:
        mapping.show({"0": {"run-a"}, "3.1": {"run-a", "run-b"}})
        assert _jobs(tmp_path) == {"0": ["run-a"], "3.1": ["run-a", "run-b"]}
        assert mapping.absent == ()


def test_a_run_that_is_no_longer_shown_goes(tmp_path: Path) -> None:
    with _mapping(tmp_path) as mapping:
        mapping.show({"0": {"run-a"}, "1": {"run-a", "run-b"}})
        mapping.show({"1": {"run-b"}})
        assert _jobs(tmp_path) == {"1": ["run-b"]}


def test_after_the_end_nothing_of_ours_is_left(tmp_path: Path) -> None:
    with _mapping(tmp_path) as mapping:
        mapping.show({"0": {"run-a"}})
    assert list(tmp_path.iterdir()) == []


def test_lines_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("4711\n")
    (tmp_path / "1").write_text("4711\n")
    (tmp_path / "notes").write_text("run-a\n")
    with _mapping(tmp_path) as mapping:
        mapping.show({"0": {"run-a"}})
        assert _jobs(tmp_path) == {"0": ["4711", "run-a"], "1": ["4711"]}
    assert _jobs(tmp_path) == {"0": ["4711"], "1": ["4711"]}
    assert (tmp_path / "notes").read_text() == "run-a\n"


def test_a_line_of_our_words_that_others_wrote_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("run-a\n")
    with _mapping(tmp_path) as mapping:
        mapping.show({"0": {"run-a"}})
        mapping.show({})
    assert _jobs(tmp_path) == {"0": ["run-a"]}


def test_a_file_that_a_script_replaced_has_the_run_again_at_the_next_beat(tmp_path: Path) -> None:
    with _mapping(tmp_path) as mapping:
        mapping.show({"0": {"run-a"}})
        (tmp_path / "0").write_text("4711\n")
        mapping.show({"0": {"run-a"}})
        assert _jobs(tmp_path) == {"0": ["4711", "run-a"]}
        (tmp_path / "0").unlink()
        mapping.show({"0": {"run-a"}})
        assert _jobs(tmp_path) == {"0": ["run-a"]}


def test_a_beat_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("run-b\n")
    with _mapping(tmp_path) as mapping:
        mapping.show({"0": {"run-a"}, "1": {"run-b"}})
        before = {path.name: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.iterdir()]}
        mapping.show({"0": {"run-a"}, "1": {"run-b"}})
        assert {path.name: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.iterdir()]} == before


def test_what_the_dead_left_is_kept_where_its_run_goes_on_and_ended_elsewhere(tmp_path: Path) -> None:
    _kill_one_that_shows(tmp_path, "0", "1")
    with _mapping(tmp_path) as mapping:
        assert _jobs(tmp_path) == {"0": ["run-a"], "1": ["run-a"]}
        mapping.show({"0": {"run-a"}})
        assert _jobs(tmp_path) == {"0": ["run-a"]}
    assert list(tmp_path.iterdir()) == []


def test_an_heir_that_dies_has_an_heir(tmp_path: Path) -> None:
    _kill_one_that_shows(tmp_path, "0")
    _kill_one_that_shows(tmp_path)
    assert _jobs(tmp_path) == {"0": ["run-a"]}
    with _mapping(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_we_note_of_our_lines_goes_with_them(tmp_path: Path) -> None:
    with _mapping(tmp_path) as mapping:
        (notes,) = tmp_path.iterdir()
        empty = notes.read_bytes()
        mapping.show({"0": {"run-a"}})
        mapping.show({})
        assert notes.read_bytes() == empty


def test_two_that_live_leave_each_other_alone(tmp_path: Path) -> None:
    with _mapping(tmp_path) as first:
        first.show({"0": {"run-a"}})
        with _mapping(tmp_path) as second:
            second.show({"0": {"run-a", "run-b"}})
            assert _jobs(tmp_path) == {"0": ["run-a", "run-b"]}
        assert _jobs(tmp_path) == {"0": ["run-a"]}


def test_lines_of_a_newer_program_are_left_to_it(tmp_path: Path) -> None:
    (tmp_path / ".observatory-other").write_text('{"schema_version":99}\n{"file":"0","line":"run-z"}\n')
    (tmp_path / "0").write_text("run-z\n")
    with _mapping(tmp_path) as mapping:
        mapping.show({})
    assert _jobs(tmp_path) == {"0": ["run-z"]}
    assert (tmp_path / ".observatory-other").exists()


def test_a_claim_that_was_cut_off_is_none(tmp_path: Path) -> None:
    (tmp_path / ".observatory-dead").write_text('{"schema_version":1}\n{"file":"0","line":"run-a"}\n{"file":"1","li')
    (tmp_path / "0").write_text("run-a\n")
    with _mapping(tmp_path) as mapping:
        mapping.show({})
    assert list(tmp_path.iterdir()) == []


def test_a_draft_of_the_dead_goes_with_them(tmp_path: Path) -> None:
    (tmp_path / ".observatory-dead").write_text("")
    (tmp_path / ".observatory-dead.draft").write_text("run-a\n")
    with _mapping(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_said_once_and_others_are_written(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    with _mapping(tmp_path) as mapping:
        for _ in range(2):
            mapping.show({"0": {"run-a"}, "1": {"run-a"}})
        assert mapping.absent == (f"{tmp_path / '0'}: Is a directory; dcgm-exporter is not told of the runs there",)
        assert (tmp_path / "1").read_text() == "run-a\n"


def test_a_folder_that_goes_is_a_reason_and_no_failure(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    with _mapping(folder) as mapping:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        mapping.show({"0": {"run-a"}})
        assert mapping.absent == (f"{folder}: No such file or directory; dcgm-exporter is not told of the runs there",)


@pytest.mark.parametrize("file", ["", "../0", "GPU-0", "1.2.3", "-1"])
def test_what_is_no_gpu_has_no_file(file: str, tmp_path: Path) -> None:
    with _mapping(tmp_path) as mapping, pytest.raises(ValueError, match="is no file of a GPU"):
        mapping.show({file: {"run-a"}})


def test_a_run_of_two_lines_is_refused(tmp_path: Path) -> None:
    with _mapping(tmp_path) as mapping, pytest.raises(ValueError, match="is not one line"):
        mapping.show({"0": {"run-a\n4711"}})


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoMapping, match=r"jobs: No such file or directory; it must be the folder of dcgm-exporter"):
        JobMapping(tmp_path / "jobs")


def test_what_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "jobs").touch()
    with pytest.raises(NoMapping, match="jobs: Not a directory"):
        JobMapping(tmp_path / "jobs")
