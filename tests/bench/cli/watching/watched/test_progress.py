"""The live line and the table at the end, from ranks' files made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.session.watched.progress import NO_PROCESS, QUIET_S, JobProgress, LiveLine
from tests.bench.results.watched.made_ranks import Fault, begin_line, made_steps, steps_line, write_lines

MS = 1_000_000


def _line(first: int, steps: int, *, step_ms: float = 50, data_ms: float = 5, **more: object) -> str:
    line = {"kind": "steps", "rule": "optimizer", "first": first, "end_ns": list(range(steps))}
    line |= {"step_ns": [int(step_ms * MS)] * steps, "data_ns": [int(data_ms * MS)] * steps, "own_ns": [MS] * steps}
    return json.dumps(line | more) + "\n"


def _page(progress: JobProgress) -> tuple[list[list[str]], list[str]]:
    blocks = list(progress.page())
    tables = [[list(map(str, row)) for row in block.rows] for block in blocks if hasattr(block, "rows")]
    return (tables[0] if tables else []), [block for block in blocks if isinstance(block, str)]


@pytest.fixture
def progress(tmp_path: Path) -> JobProgress:
    return JobProgress(tmp_path)


def test_the_line_has_the_newest_step_its_quantiles_and_the_rank_that_waits_longest(
    progress: JobProgress, tmp_path: Path
) -> None:
    (tmp_path / "watch_rank0.jsonl").write_text(_line(0, 100, tokens=[100] * 100))
    (tmp_path / "watch_rank1.jsonl").write_text(_line(0, 90, data_ms=20, tokens=[100] * 90))
    progress.read()
    assert progress.line() == "step 100   p50 50.0 ms   p99 50.0 ms   4,000 tokens/s   waiting for data 40 % (rank 1)"


@pytest.mark.parametrize("fault", [None, Fault(rank=1, phase="data", late_ms=20)])
def test_the_line_names_the_rank_that_was_late_in_the_last_steps(
    fault: Fault | None, progress: JobProgress, tmp_path: Path
) -> None:
    made = made_steps("ddp", steps=150, fault=fault)
    for rank in range(2):
        lines = [begin_line(rank), *(steps_line(made, rank, first, first + 30) for first in range(0, 150, 30))]
        write_lines(tmp_path / f"watch_rank{rank}.jsonl", lines)
    progress.read()
    line = progress.line()
    assert line is not None
    assert ("rank 1 late in data, " in line, "late" in line) == ((True, True) if fault else (False, False))


def test_a_line_whose_columns_differ_in_length_counts_for_nobody(progress: JobProgress, tmp_path: Path) -> None:
    made = made_steps("ddp", steps=60, fault=Fault(rank=1, phase="data", late_ms=20))
    for rank in range(2):
        lines = [begin_line(rank), steps_line(made, rank, 0, 60, own_ns=[1])]
        write_lines(tmp_path / f"watch_rank{rank}.jsonl", lines)
    progress.read()
    assert "late" not in (progress.line() or "")


def test_where_no_step_comes_the_line_says_for_how_long_and_where_until_one_comes(tmp_path: Path) -> None:
    now_s = [0.0]
    progress = JobProgress(tmp_path, lambda: now_s[0])
    still = {"kind": "still", "unix_s": 1.0, "limit_ns": 300_000 * MS, "still_ns": 60_000 * MS, "steps": 40}
    files = [tmp_path / f"watch_rank{rank}.jsonl" for rank in range(2)]
    for rank, phase in ((0, "backward"), (1, "data")):
        begin = json.dumps(begin_line(rank)) + "\n"
        more = {"phase": phase, "where": f"train.py:3{rank} in main", "backward_calls": 1 - rank}
        files[rank].write_text(begin + _line(0, 40) + json.dumps(still | more) + "\n")
    progress.read()
    now_s[0] = 240.0
    progress.read()
    line = progress.line()
    assert line == "step 40   no step for 4 min: rank 1 in data at train.py:31 in main; 1 other rank ahead"
    for file in files:
        with file.open("a") as opened:
            opened.write(_line(40, 1))
    progress.read()
    assert "no step" not in (progress.line() or "")


def test_files_are_read_on_from_where_they_ended(progress: JobProgress, tmp_path: Path) -> None:
    path = tmp_path / "watch_rank0.jsonl"
    whole = _line(0, 10) + _line(10, 5)
    path.write_text(whole[:-20])
    progress.read()
    assert progress.ranks[path.name].steps == 10
    path.write_text(whole)
    progress.read()
    progress.read()
    assert progress.ranks[path.name].steps == 15
    assert len(progress.ranks[path.name].step_ns) == 15


def test_the_table_has_shares_of_the_step(progress: JobProgress, tmp_path: Path) -> None:
    null = _line(0, 1, step_ms=0).replace("[0]", "[null]", 2)
    rest = _line(1, 9, backward_ns=[25 * MS] * 9, forward_ns=None)
    (tmp_path / "watch_rank0.jsonl").write_text(null + rest)
    progress.read()
    rows, words = _page(progress)
    assert rows == [["0", "10", "50.0 ms", "50.0 ms", "10.0 %", "-", "50.0 %", "-", "2.0 %"]]
    assert words == ["steps are those of the optimizer; phases are shares of the step, by the host's clock"]


def test_without_a_dataloader_the_wait_for_data_is_unknown(progress: JobProgress, tmp_path: Path) -> None:
    (tmp_path / "watch_rank0.jsonl").write_text(_line(0, 10, data_ms=0))
    progress.read()
    assert progress.line() == "step 10   p50 50.0 ms   p99 50.0 ms"
    assert _page(progress)[0] == [["0", "10", "50.0 ms", "50.0 ms", *"----", "2.0 %"]]


def test_steps_of_a_window_are_in_no_figure_of_the_line_and_the_table(progress: JobProgress, tmp_path: Path) -> None:
    window = json.dumps({"kind": "window", "first": 12, "last": 14, "trace": "windows/1/rank0.json"}) + "\n"
    traced = _line(11, 3, step_ms=500, data_ms=450) + window + _line(14, 2, step_ms=500, data_ms=450)
    (tmp_path / "watch_rank0.jsonl").write_text(_line(0, 11) + traced + _line(16, 9))
    progress.read()
    assert progress.line() == "step 25   p50 50.0 ms   p99 50.0 ms   waiting for data 10 %"
    rows, _ = _page(progress)
    assert rows == [["0", "25", "50.0 ms", "50.0 ms", "10.0 %", "-", "-", "-", "2.0 %"]]


def test_a_window_s_steps_say_of_no_rank_that_it_is_late(progress: JobProgress, tmp_path: Path) -> None:
    late = made_steps("ddp", steps=60, fault=Fault(rank=1, phase="data", late_ms=20))
    for rank in range(2):
        window = {"kind": "window", "first": 1, "last": 58, "trace": "windows/1/rank0.json"}
        lines = [begin_line(rank), steps_line(late, rank, 0, 30), window, steps_line(late, rank, 30, 60)]
        write_lines(tmp_path / f"watch_rank{rank}.jsonl", lines)
    progress.read()
    assert "late" not in (progress.line() or "")


def test_the_traced_numbers_of_a_restarted_job_are_those_since_its_restart(
    progress: JobProgress, tmp_path: Path
) -> None:
    begin = json.dumps(begin_line(0)) + "\n"
    window = json.dumps({"kind": "window", "first": 2, "last": 3, "trace": "windows/1/rank0.json"}) + "\n"
    before, after = begin + _line(0, 5), begin + _line(0, 3, step_ms=90) + window + _line(3, 2, step_ms=90)
    (tmp_path / "watch_rank0.jsonl").write_text(before + after)
    progress.read()
    (rank,) = progress.ranks.values()
    assert rank.step_ns == [50 * MS] * 5 + [90 * MS]


def test_notes_of_ranks_are_shown(progress: JobProgress, tmp_path: Path) -> None:
    (tmp_path / "watch_rank0.jsonl").write_text('{"kind": "note", "text": "no steps seen: it called backward"}\n')
    progress.read()
    assert _page(progress)[1] == ["rank 0: no steps seen: it called backward"]


def test_a_job_without_files_says_what_may_be_why(progress: JobProgress) -> None:
    progress.read()
    assert progress.line() is None
    assert _page(progress) == ([], [NO_PROCESS])


@pytest.mark.parametrize(
    "junk", ["\x00\n", "{}\n", '{"kind": "steps", "step_ns": "many"}\n', "[1, 2]\n", "{" * 500 + "\n"]
)
def test_lines_that_are_none_of_ours_are_passed_over(junk: str, progress: JobProgress, tmp_path: Path) -> None:
    (tmp_path / "watch_rank0.jsonl").write_text(junk + _line(0, 3))
    (tmp_path / "watch_rankx.jsonl").write_text(_line(0, 3))
    progress.read()
    assert [rank.steps for rank in progress.ranks.values()] == [3]


def test_a_link_is_not_followed(progress: JobProgress, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(_line(0, 3))
    (tmp_path / "watch_rank0.jsonl").symlink_to(tmp_path / "other")
    progress.read()
    assert progress.ranks["watch_rank0.jsonl"].steps == 0


def test_without_a_terminal_there_is_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = [0.0]
    live = LiveLine(is_terminal=False, clock_s=lambda: now_s[0])
    for second in range(int(3 * QUIET_S)):
        now_s[0] = second
        live.show(f"step {second}")
    live.close()
    captured = capsys.readouterr()
    assert captured.err == "step 60\nstep 120\n"
    assert captured.out == ""


def test_on_a_terminal_a_line_a_minute_begins_below_what_the_command_draws(capfd: pytest.CaptureFixture[str]) -> None:
    now_s = [0.0]
    live = LiveLine(is_terminal=True, clock_s=lambda: now_s[0])
    for second in range(int(2 * QUIET_S)):
        now_s[0] = second
        live.show(f"step {second}")
    live.close()
    assert capfd.readouterr().err == "\nstep 60\n"


def test_on_a_terminal_the_line_is_written_over_and_removed_where_a_person_wants_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    live = LiveLine(is_drawn=True, is_terminal=True)
    live.show("step 1")
    live.show(None)
    live.show("step 2")
    live.close()
    captured = capfd.readouterr()
    assert captured.err == "\rstep 1\x1b[K\r\rstep 2\x1b[K\r\r\x1b[K"
    assert captured.out == ""
