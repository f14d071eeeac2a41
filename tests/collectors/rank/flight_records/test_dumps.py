"""Dumps as torch writes them are read, and a pickle that is none runs no code."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.flight_records.dumps import NotADump, rank_in_name, read_dump
from tests.collectors.rank.flight_records.ranks import LATE, dump_of_ranks


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumped")
    dump_of_ranks(folder, LATE)
    return folder


@pytest.mark.slow
def test_torchs_pickle_holds_what_its_json_holds_and_the_lines_of_the_program(dumped: Path) -> None:
    of_pickle = read_dump((dumped / "nccl_trace_rank_0").read_bytes(), 0)
    of_json = read_dump((dumped / "rank0.flight.json").read_bytes(), 0)
    plain = [
        [
            (each.record_id, each.profiling_name, each.process_group, each.input_sizes, each.retired)
            for each in of.entries
        ]
        for of in (of_pickle, of_json)
    ]
    assert plain[0] == plain[1]
    assert [name for _, name, *_ in plain[0]] == ["gloo:all_reduce"] * 3 + ["gloo:broadcast", "gloo:all_reduce"]
    assert [retired for *_, retired in plain[0]] == [True] * 4 + [False]
    assert any(frame.filename == str(dumped / "program.py") for frame in of_pickle.entries[-1].frames)
    assert of_json.entries[-1].frames == ()


class Hostile:
    """A pickle of it makes the folder `victim`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("victim",)


@pytest.mark.parametrize("inside", [Hostile(), [Hostile()], {"frames": Hostile()}])
def test_a_pickle_that_would_run_code_is_refused_before_it_does(
    inside: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotADump, match=r"pickle of posix\.mkdir, which no Flight Recorder writes; it was not executed"):
        read_dump(pickle.dumps({"version": "2.10", "entries": [inside]}), 0)
    assert list(tmp_path.iterdir()) == []


def test_lists_of_numbers_as_torchs_pickler_may_mark_them_are_read() -> None:
    entry = {"record_id": 0, "profiling_name": "nccl:all_reduce", "process_group": ("0", "default_pg")}
    sized = {**entry, "input_sizes": [[4]], "input_dtypes": ["Float"]}
    plain = pickle.dumps({"version": "2.10", "entries": [sized]}, protocol=2)
    # [4] in place of a list, as a call: torch.jit._pickle.build_intlist([4]).
    call = b"ctorch.jit._pickle\nbuild_intlist\n%b\x85Ra"
    marked = re.sub(rb"(\]q.K\x04a)a", lambda match: call % match[1], plain, flags=re.DOTALL)
    assert marked != plain
    assert read_dump(marked, 0).entries == read_dump(plain, 0).entries


def test_groups_are_those_that_torch_lists() -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}, "": {"name": "", "desc": "", "ranks": "[]"}}
    dump = read_dump(msgspec.json.encode({"version": "2.10", "pg_config": config, "entries": []}), 3)
    assert (dump.rank, dump.groups, dump.has_forgotten) == (3, {"0": (0, 1)}, False)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "neither a pickle nor JSON"),
        (b"\x89PNG", "neither a pickle nor JSON"),
        (b"{}", "does not hold a record"),
        (b'{"version": "2.10", "entries": [{"record_id": "a"}]}', "does not hold a record"),
        (pickle.dumps({"version": "2.10"})[:-4], "damaged"),
        (pickle.dumps([1, 2]), "does not hold a record"),
        (pickle.dumps({"version": "2.10", "entries": [1]}), "does not hold a record"),
        (b"\x80\x02.", "damaged"),
    ],
)
def test_what_is_no_dump_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(NotADump, match=reason):
        read_dump(content, 0)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("comm_lib_trace_rank_12", 12),
        ("rank7.flight.json", 7),
        ("dump-5.pkl", 5),
        ("job-2026-rank_4.pickle", 4),
        ("trace.json", None),
    ],
)
def test_the_rank_is_in_the_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank
