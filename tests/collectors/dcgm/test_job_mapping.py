"""Runs stand in their GPUs' files for as long as they are shown, and end even when we do not end well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from collectors.dcgm import JobMapping, NoMapping

ROOT = Path(__file__).parents[3]
KILLED_IN_THE_MIDDLE = """
import os, signal, sys
from pathlib import Path
from collectors.dcgm import JobMapping
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


def test_a_gpu_whose_file_a_scheduler_wrote_keeps_its_job_and_is_named(tmp_path: Path) -> None:
    for name in ("0", "1", "notes"):
        (tmp_path / name).write_text("4711\n")
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with _mapping(tmp_path) as mapping:
        mapping.show({"0": {"run-a"}, "2": {"run-a"}})
        assert _jobs(tmp_path) == {"0": ["4711"], "1": ["4711"], "2": ["run-a"]}
        assert mapping.absent == (
            f"{tmp_path / '0'}: a scheduler wrote it; dcgm-exporter does not learn of the runs there",
        )
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("text", ["4711\n", "run-a\n4711\n", "run-a\nrun-a\n"])
def test_a_file_that_a_scheduler_wrote_over_is_the_schedulers_until_it_goes(text: str, tmp_path: Path) -> None:
    with _mapping(tmp_path) as mapping:
        mapping.show({"0": {"run-a"}})
        with (tmp_path / "0").open("w") as file:  # In place, as a shell does.
            file.write(text)
        mapping.show({"0": {"run-a"}})
        mapping.show({"0": {"run-b"}})
        assert (tmp_path / "0").read_text() == text
        (tmp_path / "0").unlink()
        mapping.show({"0": {"run-b"}})
        assert _jobs(tmp_path) == {"0": ["run-b"]}
        (tmp_path / "0").write_text(text)
        mapping.show({})
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    assert (tmp_path / "0").read_text() == text


def test_an_empty_file_of_a_scheduler_names_no_job_and_is_taken(tmp_path: Path) -> None:
    (tmp_path / "0").touch()
    with _mapping(tmp_path) as mapping:
        mapping.show({"0": {"run-a"}})
        assert _jobs(tmp_path) == {"0": ["run-a"]}


def test_runs_of_a_gpu_follow_each_other(tmp_path: Path) -> None:
    with _mapping(tmp_path) as mapping:
        for runs in ({"run-a"}, {"run-a", "run-b"}, {"run-b"}):
            mapping.show({"0": runs})
            assert _jobs(tmp_path) == {"0": sorted(runs)}


def test_anybody_may_read_the_files(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        with _mapping(tmp_path) as mapping:
            mapping.show({"0": {"run-a"}})
            assert (tmp_path / "0").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(mask)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"secret\n")
    (tmp_path / "0").symlink_to("elsewhere")
    with _mapping(tmp_path) as mapping:
        mapping.show({"0": {"run-a"}})
        (reason,) = mapping.absent
    assert "it is a link, but must be a file" in reason
    assert (tmp_path / "elsewhere").read_bytes() == b"secret\n"


def test_who_reads_meanwhile_sees_whole_files(tmp_path: Path) -> None:
    path, is_done, seen = tmp_path / "0", threading.Event(), set[bytes]()

    def read() -> None:
        while not is_done.is_set():
            with suppress(FileNotFoundError):
                seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with _mapping(tmp_path) as mapping:
            for number in range(200):
                mapping.show({"0": {"run-a", f"run-{number % 2}"}})
    finally:
        is_done.set()
        reader.join()
    assert seen <= {b"run-0\nrun-a\n", b"run-1\nrun-a\n"}


def test_a_beat_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("4711\n")
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


def test_what_a_scheduler_wrote_over_after_we_died_is_the_schedulers(tmp_path: Path) -> None:
    _kill_one_that_shows(tmp_path, "0")
    (tmp_path / "0").write_text("4711\n")
    with _mapping(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    assert _jobs(tmp_path) == {"0": ["4711"]}


def test_a_copy_without_its_file_goes(tmp_path: Path) -> None:
    (tmp_path / ".observatory-0").write_text("run-a\n")
    with _mapping(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_of_two_agents_the_second_is_refused_and_the_first_named(tmp_path: Path) -> None:
    with _mapping(tmp_path) as mapping:
        mapping.show({"0": {"run-a"}})
        with pytest.raises(
            NoMapping, match=rf"process {os.getpid()} .* already writes there; only one agent of a node may"
        ):
            JobMapping(tmp_path)
        assert _jobs(tmp_path) == {"0": ["run-a"]}
    with _mapping(tmp_path):
        pass


def test_a_file_that_cannot_be_written_is_said_once_and_others_are_written(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    with _mapping(tmp_path) as mapping:
        for _ in range(2):
            mapping.show({"0": {"run-a"}, "1": {"run-a"}})
        assert mapping.absent == (f"{tmp_path / '0'}: Is a directory; dcgm-exporter does not learn of the runs there",)
        assert (tmp_path / "1").read_text() == "run-a\n"


def test_a_folder_that_goes_is_a_reason_and_no_failure(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    with _mapping(folder) as mapping:
        folder.rmdir()
        mapping.show({"0": {"run-a"}})
        assert mapping.absent == (
            f"{folder / '0'}: No such file or directory; dcgm-exporter does not learn of the runs there",
        )


@pytest.mark.parametrize("file", ["", "../0", "GPU-0", "1.2.3", "-1"])
def test_what_is_no_gpu_has_no_file(file: str, tmp_path: Path) -> None:
    with _mapping(tmp_path) as mapping, pytest.raises(ValueError, match="is not a GPU file"):
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
