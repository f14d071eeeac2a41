"""Files are read alike in one process and in several, and what is no trace is refused in one line."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.errors import Misuse
from bench.results.timelines import read_files
from collectors.traces.timeline import Timeline
from tests.bench.made.small_traces import small_timeline, write_kineto, write_timelines

ROOT = Path(__file__).parents[3]


def test_our_own_files_are_read_as_they_were_saved(tmp_path: Path) -> None:
    (timeline,) = read_files(write_timelines(tmp_path, 1))
    assert timeline.rank == 1
    assert timeline.start_ns.tolist() == small_timeline(1).start_ns.tolist()


def test_a_trace_of_kineto_is_read_packed_or_not(tmp_path: Path) -> None:
    paths = [write_kineto(tmp_path / name, rank) for rank, name in enumerate(("a.json", "b.json.gz"))]
    timelines = read_files(paths)
    assert [timeline.rank for timeline in timelines] == [0, 1]
    for timeline in timelines:
        assert timeline.busy_ns("compute") == small_timeline(0).busy_ns("compute")
        assert timeline.busy_ns("communication") == small_timeline(0).busy_ns("communication")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"no\.json cannot be read: No such file or directory"):
        read_files([tmp_path / "no.json"])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"text"])
def test_what_is_no_timeline_of_ours_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank0.timeline.npz"
    path.write_bytes(content)
    with pytest.raises(Misuse, match=r"rank0\.timeline\.npz is not a Timeline of this program, or is incomplete"):
        read_files([path])


def test_half_of_a_timeline_is_refused(tmp_path: Path) -> None:
    (path,) = write_timelines(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(Misuse, match="is not a Timeline of this program, or is incomplete"):
        read_files([path])


def test_a_timeline_with_damage_in_its_middle_is_refused(tmp_path: Path) -> None:
    (path,) = write_timelines(tmp_path, 0)
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(Misuse, match="is not a Timeline of this program, or is broken"):
        read_files([path])


@pytest.mark.parametrize(("place", "value"), [(10, 99), (8, 0x41)])
def test_a_timeline_packed_in_a_way_that_nobody_knows_is_refused(place: int, value: int, tmp_path: Path) -> None:
    (path,) = write_timelines(tmp_path, 0)
    content = bytearray(path.read_bytes())
    listed = content.index(b"PK\x01\x02")  # The archive's list of its files: how to unpack one, and its flags.
    content[listed + place] = value
    path.write_bytes(content)
    with pytest.raises(Misuse, match="is not a Timeline of this program, or is broken"):
        read_files([path])


def test_a_newer_versions_timeline_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.timeline.npz"
    np.savez(path, schema_version=np.int64(99))
    with pytest.raises(Misuse, match="schema version 99 is newer"):
        read_files([path])


def test_what_is_no_trace_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"no trace")
    with pytest.raises(Misuse, match=r"a\.json"):
        read_files([path])


_READ = """
import os, pickle, sys
from pathlib import Path
from bench.errors import Misuse
from bench.results.timelines import read_files

def report(answer):
    sys.stdout.buffer.write(pickle.dumps(answer))

if __name__ == "__main__":
    try:
        report(read_files([Path(name) for name in sys.argv[1:]], apart_from_bytes=0))
    except Misuse as error:
        report(str(error))
"""


def _read_apart(folder: Path, paths: list[Path]) -> tuple[Timeline, ...] | str:
    """The Timelines, or the refusal, of a process that reads with others: they would stay for as long as this one."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core reads one file after the other")
    script = folder / "read.py"
    script.write_text(_READ)
    ended = subprocess.run(
        [sys.executable, str(script), *map(str, paths)],
        capture_output=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.stderr == b""
    answer: tuple[Timeline, ...] | str = pickle.loads(ended.stdout)
    return answer


def test_several_processes_give_what_one_gives(tmp_path: Path) -> None:
    paths = [write_kineto(tmp_path / f"rank{rank}.json", rank) for rank in range(3)]
    together, apart = read_files(paths), _read_apart(tmp_path, paths)
    assert not isinstance(apart, str)
    assert [timeline.rank for timeline in apart] == [0, 1, 2]
    for one, other in zip(together, apart, strict=True):
        assert (one.names, one.calls, one.about) == (other.names, other.calls, other.about)
        for column in ("name", "kind", "start_ns", "end_ns", "stream", "correlation", "call", "sequence", "shape"):
            assert getattr(one, column).tolist() == getattr(other, column).tolist()


def test_a_broken_trace_among_others_is_refused_by_several_processes_too(tmp_path: Path) -> None:
    paths = [write_kineto(tmp_path / "rank0.json", 0), tmp_path / "rank1.json"]
    paths[1].write_bytes(b"no trace")
    refused = _read_apart(tmp_path, paths)
    assert isinstance(refused, str)
    assert refused.startswith(f"{paths[1]}: ")


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    path = write_kineto(tmp_path / "rank0.json", 0)
    code = (
        "import sys; from pathlib import Path; from bench.results.timelines import read_files;"
        " read_files([Path(sys.argv[1])]); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)
