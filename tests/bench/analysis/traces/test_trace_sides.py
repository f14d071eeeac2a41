"""A side has one trace of each rank, in their order, and tells what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.analysis.traces.inputs import read_sides, side_of
from bench.errors import Misuse
from collectors.traces.timeline import About
from tests.bench.made.small_traces import small_timeline, write_timelines


def _paths(count: int) -> list[Path]:
    return [Path(f"trace{number}.json") for number in range(count)]


def test_traces_are_in_the_order_of_their_ranks() -> None:
    side = side_of("trace", _paths(2), [small_timeline(1), small_timeline(0)])
    assert [trace.timeline.rank for trace in side.traces] == [0, 1]
    assert [trace.path.name for trace in side.traces] == ["trace1.json", "trace0.json"]
    assert side.notices == ()


def test_two_files_of_one_rank_are_refused_by_name() -> None:
    with pytest.raises(
        Misuse, match=r"trace0\.json and trace1\.json both belong to rank 1; name one file for each rank"
    ):
        side_of("trace", _paths(2), [small_timeline(1), small_timeline(1)])


def test_ranks_without_a_trace_are_named() -> None:
    (line,) = side_of("trace", _paths(1), [small_timeline(1, ranks=4)]).notices
    assert line.startswith("3 of 4 ranks have no trace (0, 2, 3): ")


def test_of_many_missing_ranks_the_first_are_named() -> None:
    (line,) = side_of("trace", _paths(1), [small_timeline(0, ranks=1024)]).notices
    assert line.startswith("1023 of 1024 ranks have no trace (1, 2, 3, 4, 5, 6, 7, 8, ...): ")


def test_a_run_knows_its_ranks_where_its_traces_do_not() -> None:
    (line,) = side_of("trace", _paths(1), [small_timeline(0, about=About())], ranks=2).notices
    assert line.startswith("1 of 2 ranks have no trace (1): ")


def test_traces_that_do_not_tell_how_many_ranks_there_were_miss_none() -> None:
    assert side_of("trace", _paths(1), [small_timeline(5, about=About())]).notices == ()


def test_traces_of_worlds_of_unlike_sizes_are_suspected() -> None:
    (line,) = side_of("trace", _paths(2), [small_timeline(0, ranks=2), small_timeline(1, ranks=4)]).notices
    assert line == "the traces report world sizes of 2 and 4; they may belong to different runs"


def test_ranks_of_a_world_that_nobody_would_list_are_counted() -> None:
    size = 2**31 - 1
    world = About(world_size=size)
    (line,) = side_of("trace", _paths(2), [small_timeline(rank, about=world) for rank in (0, 2)]).notices
    assert line.startswith(f"{size - 2} of {size} ranks have no trace (1, 3, 4, 5, 6, 7, 8, 9, ...)")


def test_what_was_left_out_of_a_trace_is_told_with_its_file() -> None:
    about = About(left_out=("3 events of negative duration",))
    (line,) = side_of("trace", _paths(1), [small_timeline(0, about=about)]).notices
    assert line == "trace0.json: left out: 3 events of negative duration"


def test_each_side_is_read_from_what_it_names(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        write_timelines(tmp_path / name, 0, 1)
    before, after = read_sides(
        {"before": [str(tmp_path / "one")], "after": [str(tmp_path / "other" / "rank1.timeline.npz")]},
        runs_folder=tmp_path,
        store_url=None,
    )
    assert [timeline.rank for timeline in before.timelines()] == [0, 1]
    assert [timeline.rank for timeline in after.timelines()] == [1]
    assert {trace.path.parent.name for trace in (*before.traces, *after.traces)} == {"one", "other"}


def test_the_rank_of_a_lone_trace_may_be_told(tmp_path: Path) -> None:
    paths = write_timelines(tmp_path, 0)
    (side,) = read_sides({"trace": [str(paths[0])]}, ranks=(5,), runs_folder=tmp_path, store_url=None)
    assert [timeline.rank for timeline in side.timelines()] == [5]


def test_one_rank_for_several_traces_is_refused(tmp_path: Path) -> None:
    write_timelines(tmp_path, 0, 1)
    with pytest.raises(
        Misuse, match=r"--rank is given once for 2 traces \(rank0.*, rank1.*\); give it once for each, in this order"
    ):
        read_sides({"trace": [str(tmp_path)]}, ranks=(5,), runs_folder=tmp_path, store_url=None)


def test_what_lies_in_a_folder_of_traces_and_is_none_is_left_out_by_name(tmp_path: Path) -> None:
    write_timelines(tmp_path, 0, 1)
    (tmp_path / "notes.json").write_text('{"a": 1}')
    (tmp_path / "rank2.timeline.npz").write_bytes(b"cut short")
    (side,) = read_sides({"trace": [str(tmp_path)]}, runs_folder=tmp_path, store_url=None)
    assert [timeline.rank for timeline in side.timelines()] == [0, 1]
    assert [line.partition(": ")[::2] for line in side.notices] == [
        (
            "skipped",
            f'{tmp_path}/notes.json: byte 0: it has no "traceEvents", and is not a list of events; a trace is JSON,'
            " or JSON.gz, as torch.profiler exports it",
        ),
        ("skipped", f"{tmp_path}/rank2.timeline.npz is not a Timeline of this program, or is incomplete"),
    ]


def test_a_file_that_somebody_names_is_not_left_out(tmp_path: Path) -> None:
    write_timelines(tmp_path, 0)
    notes = tmp_path / "notes.json"
    notes.write_text('{"a": 1}')
    with pytest.raises(Misuse, match=r"notes\.json"):
        read_sides({"trace": [str(tmp_path), str(notes)]}, runs_folder=tmp_path, store_url=None)
