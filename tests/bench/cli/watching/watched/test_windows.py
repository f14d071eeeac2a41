"""Windows of a watched job: ranks agree on the same steps, trace them, and leave the script as it was."""

from __future__ import annotations

import json
import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.traces.watched_window import join_window
from bench.results.watched.details import TracedWindow
from bench.results.watched.run import read_run
from bench.results.watched.windows import phases_of, traced_windows, window_folder
from bench.session.watched.session import environment, write_hook
from collectors.traces.timeline import load
from collectors.watch import observatory_watch
from collectors.watch.observatory_watch_tracer import Phases
from collectors.watch.observatory_watch_window import ANSWER_NS, POLL_NS, BoundedStore, Windows

ROOT = Path(__file__).parents[5]
PROGRAMS = Path(__file__).with_name("programs")
STEP_NS = 100_000_000


# Agreeing on the steps, with a clock and a store of the test's own.


@dataclass
class FakeStore:
    """As torch.distributed.Store: what is read is bytes, and a key that is not there may not be read."""

    values: dict[str, bytes] = field(default_factory=dict)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key]


class FakeRank:
    """A rank whose steps end when the test says so."""

    def __init__(self, folder: Path, rank: int, world: int, store: FakeStore | None) -> None:
        self.now_ns = 0
        self.watch = observatory_watch.Watch({"folder": str(folder)}, clock_ns=lambda: self.now_ns)
        self.windows = Windows(self.watch, observatory_watch, str(folder / "hook"), lambda: (rank, world, store))

    def step(self, times: int = 1, step_ns: int = STEP_NS) -> None:
        for _ in range(times):
            self.now_ns += step_ns
            self.watch._steps += 1
            self.watch._end_ns = self.now_ns
            self.windows.at_step_end()


def _ask(folder: Path, steps: int = 3, number: int = 1) -> None:
    (folder / "windows" / str(number)).mkdir(parents=True)
    (folder / "hook").mkdir(exist_ok=True)
    (folder / "hook" / "window.json").write_text(json.dumps({"id": number, "steps": steps, "why": "test"}))


def _written(folder: Path, name: str, number: int = 1) -> Any:
    return json.loads((folder / "windows" / str(number) / name).read_text())


def test_ranks_at_different_steps_agree_on_steps_that_none_has_reached(tmp_path: Path) -> None:
    store = FakeStore()
    ranks = [FakeRank(tmp_path, rank, 3, store) for rank in range(3)]
    for rank, behind in zip(ranks, (0, 4, 9), strict=True):
        rank.watch._steps = 100 - behind
    _ask(tmp_path)
    ranks[0].step(11)  # A second later it looks, and proposes.
    for rank in ranks[1:]:
        rank.step(11)
    assert not (tmp_path / "windows" / "1" / "window.json").exists()
    ranks[0].step()
    agreed = _written(tmp_path, "window.json")
    assert (agreed["first"], agreed["last"], agreed["world_size"]) == (115, 117, 3)
    assert agreed["first"] > max(rank.watch._steps for rank in ranks)
    assert (tmp_path / "hook" / "window.json").exists()  # Until the window is over.


def test_a_rank_that_comes_too_late_drops_the_window_for_all(tmp_path: Path) -> None:
    store = FakeStore()
    first, late = FakeRank(tmp_path, 0, 2, store), FakeRank(tmp_path, 1, 2, store)
    _ask(tmp_path)
    first.step(11)
    late.step(11)
    first.step()
    agreed = _written(tmp_path, "window.json")
    late.watch._steps = agreed["first"]  # Its steps ended before it looked again.
    late.step()
    assert "was at step" in _written(tmp_path, "rank1.missed")["why"]
    first.step(agreed["first"] - first.watch._steps + 1)
    assert "rank 1 was at step" in _written(tmp_path, "rank0.missed")["why"]


def test_a_rank_that_never_answers_drops_the_window_with_its_number(tmp_path: Path) -> None:
    store = FakeStore()
    rank = FakeRank(tmp_path, 0, 3, store)
    _ask(tmp_path)
    store.set("1 steps 1", "7")
    rank.step(2 + ANSWER_NS // POLL_NS, step_ns=POLL_NS)
    assert _written(tmp_path, "window.json")["dropped"] == "rank 2 did not answer within 60 s"


def test_a_request_that_is_withdrawn_traces_nothing_and_the_next_one_is_taken(tmp_path: Path) -> None:
    store = FakeStore()
    ranks = [FakeRank(tmp_path, rank, 2, store) for rank in range(2)]
    _ask(tmp_path)
    ranks[0].step(11)  # It has proposed, and the other rank stands still.
    (tmp_path / "hook" / "window.json").unlink()
    ranks[0].step(2 + ANSWER_NS // POLL_NS, step_ns=POLL_NS)
    ranks[1].step(11)
    assert list((tmp_path / "windows" / "1").iterdir()) == []
    _ask(tmp_path, number=2)
    for _ in range(25):
        for rank in ranks:
            rank.step()
    assert "dropped" not in _written(tmp_path, "window.json", number=2)


class WithdrawingStore(FakeStore):
    """A store in which the request is withdrawn just before it answers, when rank 0 has seen all ranks' steps."""

    request: Path

    def get(self, key: str) -> bytes:
        self.request.unlink(missing_ok=True)
        return super().get(key)


def test_a_request_that_is_withdrawn_while_the_ranks_agree_traces_nothing(tmp_path: Path) -> None:
    store = WithdrawingStore()
    store.request = tmp_path / "hook" / "window.json"
    ranks = [FakeRank(tmp_path, rank, 2, store) for rank in range(2)]
    _ask(tmp_path)
    for _ in range(25):
        for rank in ranks:
            rank.step()
    assert [path.name for path in (tmp_path / "windows" / "1").iterdir()] == ["window.json"]
    assert _written(tmp_path, "window.json")["dropped"] == "withdrawn while the ranks agreed on its steps"
    _ask(tmp_path, number=2)
    for rank in ranks:
        rank.step(11)
    assert "2 steps 1" in store.values


def test_a_withdrawn_request_leaves_the_one_after_it(tmp_path: Path) -> None:
    store = FakeStore()
    ranks = [FakeRank(tmp_path, rank, 2, store) for rank in range(2)]
    _ask(tmp_path)
    for rank in ranks:
        rank.step(11)
    _ask(tmp_path, number=2)  # In place of the first one, on which the ranks have not agreed.
    for _ in range(25):
        for rank in ranks:
            rank.step()
    assert list((tmp_path / "windows" / "1").iterdir()) == []
    assert "dropped" not in _written(tmp_path, "window.json", number=2)


def test_ranks_without_torch_distributed_cannot_agree_and_say_so(tmp_path: Path) -> None:
    rank = FakeRank(tmp_path, 0, 2, None)
    _ask(tmp_path)
    rank.step(11)
    assert "torch.distributed is not initialised" in _written(tmp_path, "window.json")["dropped"]


class Silent(FakeStore):
    """Its host does not answer: whoever asks it waits."""

    def set(self, key: str, value: str) -> None:
        raise AssertionError("a step would wait")

    def check(self, keys: list[str]) -> bool:
        raise AssertionError("a step would wait")


def test_the_store_is_not_asked_while_nobody_wants_a_window(tmp_path: Path) -> None:
    for rank in range(2):
        made = FakeRank(tmp_path, rank, 2, Silent())
        made.step(1000, step_ns=POLL_NS // 100)
        assert not made.windows._failures


def test_a_window_that_fails_is_dropped_and_the_next_one_is_taken(tmp_path: Path) -> None:
    store = FakeStore()
    store.set = operator.truediv  # type: ignore[method-assign, assignment]  # It fails within C, as a store does.
    rank = FakeRank(tmp_path, 0, 2, store)
    _ask(tmp_path)
    rank.step(11)
    assert "rank 0: TypeError" in _written(tmp_path, "window.json")["dropped"]
    assert not (tmp_path / "hook" / "window.json").exists()
    for number in (2, 3):
        _ask(tmp_path, number=number)
        rank.step(11)
    _ask(tmp_path, number=4)
    rank.step(11)
    assert "windows ended after 3 failures" in _written(tmp_path, "window.json", number=4)["dropped"]


def test_a_rank_that_waits_takes_the_next_request_after_rank_0_gave_up(tmp_path: Path) -> None:
    stores: list[FakeStore | None] = [FakeStore()]
    first, other = (FakeRank(tmp_path, rank, 2, stores[0]) for rank in range(2))
    first.windows._place = lambda: (0, 2, stores[-1])
    _ask(tmp_path)
    other.step(11)
    stores.append(None)  # Of rank 0 alone, which says so to nobody.
    first.step(11)
    other.step()
    stores.pop()
    _ask(tmp_path, number=2)
    for _ in range(25):
        first.step()
        other.step()
    assert "dropped" not in _written(tmp_path, "window.json", number=2)


def test_in_a_trace_forward_begins_at_a_batch_and_without_one_is_not_told_from_logging(tmp_path: Path) -> None:
    watch = FakeRank(tmp_path, 0, 1, None).watch
    watch.has_trained = True
    phases = Phases(watch)
    for has_batch in (True, False):
        if has_batch:
            watch.enter_data()
            watch.leave_data()
        watch.enter_backward()
        watch.leave_backward()
        phases.step_ends()
    times = phases.close()
    assert {name: len(times[name]) for name in ("data", "forward", "backward", "before backward")} == {
        "data": 1,
        "forward": 1,
        "backward": 2,
        "before backward": 1,
    }


def test_a_request_that_cannot_be_read_is_noted_a_few_times_only(tmp_path: Path) -> None:
    rank = FakeRank(tmp_path, 0, 1, None)
    notes: list[str] = []
    rank.watch.note = notes.append  # type: ignore[method-assign, assignment]
    _ask(tmp_path)
    (tmp_path / "hook" / "window.json").write_text("{")
    rank.step(100)
    assert len(notes) == 4
    assert notes[-1].startswith("windows ended after 3 failures")


def test_a_process_group_that_is_destroyed_drops_the_window_and_the_next_one_is_taken(tmp_path: Path) -> None:
    stores: list[FakeStore | None] = [FakeStore()]
    ranks = [FakeRank(tmp_path, rank, 2, None) for rank in range(2)]
    for number, rank in enumerate(ranks):
        rank.windows._place = lambda number=number: (number, 2, stores[-1])  # type: ignore[misc]
    _ask(tmp_path)
    ranks[1].step(11)
    stores.append(None)
    ranks[0].step(11)
    ranks[1].step(1)
    assert "not initialised" in _written(tmp_path, "window.json")["dropped"]
    stores.append(FakeStore())
    _ask(tmp_path, number=2)
    for _ in range(12):
        for rank in ranks:
            rank.step()
    assert _written(tmp_path, "window.json", number=2)["first"] > max(rank.watch._steps for rank in ranks)


def test_a_rank_that_acknowledged_long_ago_has_time_to_see_the_commit(tmp_path: Path) -> None:
    """It looks once a second by then; rank 0's own last step was a long one, for example a checkpoint."""
    store = FakeStore()
    first, early = FakeRank(tmp_path, 0, 2, store), FakeRank(tmp_path, 1, 2, store)
    _ask(tmp_path)
    first.step(110)
    first.step(1, step_ns=200 * STEP_NS)
    early.step(11)
    first.step(1, step_ns=POLL_NS)
    agreed = _written(tmp_path, "window.json")
    assert (agreed["first"] - first.watch._steps) * STEP_NS > POLL_NS


STORE_HOST = """
import sys, time
from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


def _stop(process: subprocess.Popen[Any]) -> None:
    """Stop all threads of a child; the signal alone is not awaited, so that they may still answer after it."""
    process.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])


def test_a_store_whose_host_hangs_drops_the_window_and_the_next_one_is_taken_once_it_answers(tmp_path: Path) -> None:
    import torch.distributed as dist

    words = [sys.executable, "-c", STORE_HOST]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment()) as host:
        assert host.stdout is not None
        client = dist.PrefixStore("watch", dist.TCPStore("127.0.0.1", int(host.stdout.readline()), is_master=False))  # type: ignore[attr-defined]
        bounded = BoundedStore(most_s=0.2).around(client)
        rank = FakeRank(tmp_path, 0, 2, bounded)  # type: ignore[arg-type]
        try:
            _stop(host)
            _ask(tmp_path)
            rank.step(11)  # Its own number waits.
            assert _written(tmp_path, "window.json")["dropped"].endswith("the job's store did not answer within 0.2 s")
            for number in (2, 3, 4, 5):
                _ask(tmp_path, number=number)
                rank.step(11)
                assert _written(tmp_path, "window.json", number)["dropped"].endswith("store still does not answer")
        finally:
            host.send_signal(signal.SIGCONT)
        while bounded._is_waiting:
            time.sleep(0.01)
        assert client.check(["1 steps 0"])
        client.set("6 steps 1", "7")
        _ask(tmp_path, number=6)
        rank.step(12)
        assert "dropped" not in _written(tmp_path, "window.json", number=6)


STORE_CLIENT = """
import sys, time
import torch.distributed as dist
from collectors.watch import observatory_watch_window
from collectors.watch.observatory_watch_window import BoundedStore, NoAnswer

observatory_watch_window.END_S = 60.0  # A busy machine.

class SlowEnd:
    def __del__(self):
        time.sleep(2)  # The interpreter ends meanwhile.

slow_end = SlowEnd()
bounded = BoundedStore(most_s=0.2).around(dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False))
print("connected", flush=True)
sys.stdin.readline()
try:
    bounded.check(["key"])
except NoAnswer:
    print("no answer", flush=True)
"""


def test_an_answer_of_the_store_that_comes_when_the_process_ends_does_not_abort_it() -> None:
    words, pipes = [sys.executable, "-c"], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*words, STORE_HOST], env=_environment(), **pipes) as host:  # type: ignore[call-overload]
        port = host.stdout.readline().strip()
        with subprocess.Popen([*words, STORE_CLIENT, port], env=_environment(), **pipes) as client:  # type: ignore[call-overload]
            assert client.stdout.readline() == "connected\n"
            _stop(host)
            try:
                client.stdin.write("\n")
                client.stdin.flush()
                assert client.stdout.readline() == "no answer\n"
                time.sleep(0.3)
            finally:
                host.send_signal(signal.SIGCONT)
            assert client.wait() == 0


def test_the_wait_for_a_silent_store_is_no_time_of_the_watch_in_the_step(tmp_path: Path) -> None:
    bounded = BoundedStore().around(FakeStore())
    bounded._is_waiting = True
    rank = FakeRank(tmp_path, 0, 2, bounded)  # type: ignore[arg-type]
    rank.watch.clock_ns = lambda: rank.now_ns + 5 * POLL_NS  # So long after the step's end.
    _ask(tmp_path)
    rank.step(11)
    assert _written(tmp_path, "window.json")["dropped"].endswith("store still does not answer")
    assert rank.watch._own == -5 * POLL_NS  # The caller adds all that passed since the step's end.
    assert rank.windows._failures == 0


# Real processes.


def _environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}


def _watch(folder: Path, *command: str, words: tuple[str, ...] = ()) -> tuple[subprocess.CompletedProcess[str], Path]:
    options = ("--name", "job", "--runs", str(folder / "runs"), "--store", f"sqlite:///{folder}/h.sqlite", *words)
    done = subprocess.run(
        [sys.executable, "-m", "bench", "watch", *options, "--", *command],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    (run,) = (folder / "runs").iterdir()
    return done, run


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, TracedWindow, Path]]:
    def alone(case: str) -> tuple[str, TracedWindow, Path]:
        done, run = _watch(tmp_path_factory.mktemp(case), sys.executable, str(PROGRAMS / "alone.py"), case)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert case != "whole" or "USDT:" not in done.stderr  # What kineto prints of the script's own profiler stays.
        (window,) = traced_windows(run)
        return done.stdout, window, run

    return alone


@pytest.mark.slow
def test_a_window_changes_no_loss_and_leaves_nothing_in_the_process(
    alone: Callable[[str], tuple[str, TracedWindow, Path]],
) -> None:
    said, window, run = alone("whole")
    words = [sys.executable, str(PROGRAMS / "alone.py"), "whole"]
    environment = _environment(PYTHONPATH="/nowhere")
    unwatched = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert said.splitlines()[:-1] == unwatched.stdout.splitlines()[:-1]
    assert said.splitlines()[-1] == "left:"
    assert window.dropped is None
    assert window.first is not None
    assert window.last == window.first + 3
    assert window.step_s is not None
    assert window.late is not None
    assert window.late.rank is None
    assert sorted(path.name for path in (run / "windows" / "1").iterdir()) == ["result.json", "window.json"]
    assert (run / "trial1" / "rank0.timeline.npz").exists()
    figures = read_run(run)
    # A window's steps, the one before and the one after are in no figure; nor is the warm-up.
    left_out = {*range(9), *range(window.first - 1, window.last + 2)}
    assert figures.case.steps == 90 - len(left_out)
    assert figures.details.windows == (window,)


@pytest.mark.slow
def test_a_redacted_trace_has_no_folders_and_is_joined_as_any(tmp_path: Path) -> None:
    hook = write_hook(tmp_path, redact=True)
    words = [sys.executable, str(PROGRAMS / "alone.py"), "named"]
    subprocess.run(words, env=environment(_environment(), hook), check=True, capture_output=True)
    text = (tmp_path / "windows" / "1" / "rank0.json").read_bytes()
    assert b"load rows.bin" in text
    for folder in ("/home/somebody", str(tmp_path), str(PROGRAMS), str(Path(os.__file__).parent)):
        assert folder.encode() not in text
    assert join_window(tmp_path, 1).step_s is not None
    assert "load rows.bin" in load(tmp_path / "trial1" / "rank0.timeline.npz").names


@pytest.mark.slow
def test_steps_that_end_inside_ranges_of_the_script_cause_no_warning_and_keep_their_length(tmp_path: Path) -> None:
    words = [sys.executable, "-W", "error", str(PROGRAMS / "alone.py"), "nested"]
    watched = environment(_environment(), write_hook(tmp_path))
    done = subprocess.run(words, env=watched, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for number in (1, 2):
        began_ns, ended_ns = phases_of(window_folder(tmp_path, number), 0).steps[-1]
        assert join_window(tmp_path, number).dropped is None
        timeline = load(tmp_path / f"trial{number}" / "rank0.timeline.npz")
        last = timeline.of_kind("step").nonzero()[0][-1]
        assert timeline.end_ns[last] - timeline.start_ns[last] == ended_ns - began_ns


@pytest.mark.slow
@pytest.mark.parametrize("case", ["theirs_first", "theirs_scheduled", "theirs_later"])
def test_the_script_s_own_profiler_keeps_its_trace_and_the_window_is_dropped(
    case: str, alone: Callable[[str], tuple[str, TracedWindow, Path]]
) -> None:
    said, window, _ = alone(case)
    assert said.splitlines()[-1] == "own events: True"
    assert window.dropped is not None
    assert "the script's own profiler" in window.dropped


@pytest.mark.slow
def test_a_process_that_is_forked_in_a_window_records_nothing(
    alone: Callable[[str], tuple[str, TracedWindow, Path]],
) -> None:
    said, window, _ = alone("forked")
    assert window.dropped is None
    grown_mb = int(said.splitlines()[-1].removeprefix("grown by MB: "))
    assert grown_mb < 10  # With the profiler's callbacks 107.


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
PHASES = ("none", "data", "forward", "backward", "optimizer")


@pytest.mark.alone
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_window_names_the_late_rank_and_its_phase_or_says_unsure(strategy: str, tmp_path: Path) -> None:
    done, run = _watch(tmp_path, *TORCHRUN, str(PROGRAMS / "windows.py"), strategy, *PHASES)
    assert done.returncode == 0, done.stderr
    windows = traced_windows(run)
    assert [window.why for window in windows] == list(PHASES)
    named = []
    for window in windows:
        assert window.dropped is None, window
        assert window.late is not None
        assert window.late.rank in ((None,) if window.why == "none" else (None, 1)), window
        assert window.late.phase in (None, window.why), window
        assert window.waiting_ratio is not None
        assert window.exposed_ratio is not None
        named += [window.why] if window.late.rank == 1 else []
    assert named, windows
    assert {rank.windows for rank in read_run(run).details.ranks} == {
        tuple((window.first, window.last) for window in windows)
    }


@pytest.mark.alone
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_five_windows_without_a_fault_name_nobody(strategy: str, tmp_path: Path) -> None:
    done, run = _watch(tmp_path, *TORCHRUN, str(PROGRAMS / "windows.py"), strategy, *["none"] * 5)
    assert done.returncode == 0, done.stderr
    windows = traced_windows(run)
    assert [window.dropped for window in windows] == [None] * 5
    assert [window.late.rank for window in windows if window.late is not None] == [None] * 5, windows


@pytest.mark.slow
def test_ranks_of_different_pace_trace_the_same_steps(tmp_path: Path) -> None:
    done, run = _watch(tmp_path, *TORCHRUN, str(PROGRAMS / "windows.py"), "apart", "none")
    assert done.returncode == 0, done.stderr
    (window,) = traced_windows(run)
    assert window.dropped is None
    assert {rank.windows for rank in read_run(run).details.ranks} == {((window.first, window.last),)}
