"""The local engine blames the right rank for each fault, keeps to its limit, and leaves no process behind."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from bench.case import Case
from bench.engines.agent_link import StartLimit
from bench.engines.environment import environment
from bench.engines.local import LocalEngine
from bench.errors import InfrastructureFailed
from bench.rank.fault_injection import Fault, FaultKind
from bench.rank.messages import TrialEnded, TrialOrder, TrialProgress
from collectors.sample_log import Ended, Opened, Reading, read
from tests.bench.made.examples import SMALL, small_case
from tests.bench.made.small_disk import on_a_full_disk

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    """Each test's folder is that of a run."""
    with LocalEngine(tmp_path_factory.getbasetemp()) as started:
        started.machine()
        yield started


@pytest.mark.slow
def test_the_machine_is_told_as_often_as_it_is_asked_for(engine: LocalEngine) -> None:
    """The agent says it once; each case that is measured again asks."""
    assert engine.machine() == engine.machine()


def test_a_start_may_take_five_times_the_slowest_so_far_and_a_minute_in_any_case() -> None:
    limit = StartLimit()
    assert limit.seconds == 300
    limits = []
    for elapsed_s in (4.0, 20.0, 10.0, 90.0):
        limit.took(elapsed_s)
        limits.append(limit.seconds)
    assert limits == [60, 100, 100, 300]


def test_a_longer_first_start_raises_the_limit_of_all() -> None:
    limit = StartLimit(1800)
    assert limit.seconds == 1800
    limit.took(900)
    assert limit.seconds == 1800
    limit.took(4.0)
    assert limit.seconds == 1800


def test_an_agent_that_does_not_start_is_given_up_after_what_starts_usually_take(tmp_path: Path) -> None:
    class FakeStarts(StartLimit):
        @property
        def seconds(self) -> float:
            return 0.0

    with (
        LocalEngine(tmp_path, start_limit=FakeStarts()) as engine,
        pytest.raises(InfrastructureFailed, match="did not answer in time and was ended"),
    ):
        engine.machine()


def _run(
    engine: LocalEngine,
    folder: Path,
    case: Case,
    *,
    fault: Fault | None = None,
    limit_s: float = 60.0,
    progress: list[TrialProgress] | None = None,
) -> TrialEnded:
    order = TrialOrder(run=folder.name, trial=0, case=case, limit_s=limit_s, fault=fault)
    ended = engine.run(order, (progress if progress is not None else []).append)
    assert _ranks_left(folder) == []
    return ended


class SessionsMeanwhile(list[TrialProgress]):
    """Progress of a run, and the sessions that its ranks and their loaders were in when there was some."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.leaders: set[int] = set()
        self._folder = folder

    def append(self, message: TrialProgress) -> None:
        """Look around."""
        super().append(message)
        self.leaders |= {os.getsid(int(process.split()[0])) for process in _ranks_left(self._folder)}


def _ranks_left(folder: Path) -> list[str]:
    """Processes whose standard error is a file of the run: its ranks and their loaders."""
    left = []
    for process in psutil.process_iter(["status"]):
        try:
            target = os.readlink(f"/proc/{process.pid}/fd/2")  # noqa: PTH115
        except OSError:
            continue
        if target.startswith(f"{folder}/") and process.info["status"] != psutil.STATUS_ZOMBIE:
            left.append(f"{process.pid} {target}")
    return left


def test_each_rank_writes_its_steps_and_a_good_end(engine: LocalEngine, tmp_path: Path) -> None:
    case = small_case(ranks=2, warm_up=2, steps=4, trace_steps=2)
    progress: list[TrialProgress] = []
    ended = _run(engine, tmp_path, case, progress=progress)
    assert (ended.outcome, ended.cause) == ("done", None)
    for rank in range(2):
        records = read(tmp_path / f"rank{rank}.jsonl").records
        first, *readings, last = records
        assert isinstance(first, Opened)
        assert first.rank == rank
        assert isinstance(last, Ended)
        assert last.error is None
        marks = [record.mark for record in readings if isinstance(record, Reading)]
        assert marks == ["warm_up"] * 2 + ["measured"] * 4 + ["traced"] * 2 + ["memory"]
    assert [message.steps for message in progress] == sorted({message.steps for message in progress})


@pytest.mark.parametrize(("kind", "rank"), [("raise", 2), ("kill", 0), ("kill", 2), ("exit", 0), ("leave", 0)])
def test_the_faulty_rank_is_blamed_with_its_step(
    kind: FaultKind, rank: int, engine: LocalEngine, tmp_path: Path
) -> None:
    case = small_case(ranks=3, model=replace(SMALL, batch=6))
    ended = _run(engine, tmp_path, case, fault=Fault(kind=kind, rank=rank, step=2))
    assert ended.outcome == "failed"
    assert ended.cause is not None
    expected = {"raise": "error", "exit": "error", "kill": "killed", "leave": "left"}[kind]
    assert (ended.cause.kind, ended.cause.rank, ended.cause.step) == (expected, rank, 2)
    assert f"{tmp_path}/rank{rank}.err" in ended.cause.text


def test_ranks_that_cannot_start_cuda_end_at_once_and_say_why(engine: LocalEngine, tmp_path: Path) -> None:
    if torch.version.cuda is not None:
        pytest.skip("this torch is built with CUDA")
    ended = _run(engine, tmp_path, small_case(ranks=2, device="cuda"))
    assert ended.outcome == "failed"
    assert ended.cause is not None
    assert (ended.cause.kind, ended.cause.last_lines) == ("agent", ())
    assert "cannot use its GPU: torch is built without CUDA: install a CUDA build" in ended.cause.text


HANGS_S = 15.0
"""A limit at which even the ranks of a busy machine have done nothing for long, by the pace of their own steps."""


def test_a_hung_rank_is_ended_at_the_limit_and_told_from_those_that_wait_for_it(
    engine: LocalEngine, tmp_path: Path
) -> None:
    sessions = SessionsMeanwhile(tmp_path)
    hang = Fault(kind="hang", rank=1, step=2)
    ended = _run(engine, tmp_path, small_case(ranks=2), fault=hang, limit_s=HANGS_S, progress=sessions)
    assert ended.cause is not None
    assert (ended.cause.kind, ended.cause.rank, ended.cause.step) == ("hung", 1, 2)
    assert len(sessions.leaders) == 2  # Each rank; the plain scripts of the benchmark are started alike.
    printed = (tmp_path / "rank1.err").read_text()
    assert "fault_commit.py" in printed  # Its stack names the line.
    assert re.search(r"Flight Recorder, newest entry last:\n( .*\n)*  \d+: gloo:all_reduce in group 0", printed)


@pytest.mark.parametrize("kind", ["stop", "wait"])
def test_a_rank_that_waits_for_no_message_or_is_stopped_is_blamed_for_the_hang(
    kind: FaultKind, engine: LocalEngine, tmp_path: Path
) -> None:
    case = small_case(ranks=3, model=replace(SMALL, batch=6))
    ended = _run(engine, tmp_path, case, fault=Fault(kind=kind, rank=1, step=2), limit_s=HANGS_S)
    assert ended.cause is not None
    assert (ended.cause.kind, ended.cause.rank, ended.cause.step) == ("hung", 1, 2)


def test_a_rank_that_runs_out_of_memory_says_how_much_it_asked_for(engine: LocalEngine, tmp_path: Path) -> None:
    ended = _run(engine, tmp_path, small_case(ranks=2), fault=Fault(kind="memory", rank=1, step=2))
    assert ended.cause is not None
    assert (ended.cause.kind, ended.cause.rank, ended.cause.step) == ("error", 1, 2)
    assert "can't allocate memory" in ended.cause.text


@pytest.mark.slow
def test_a_rank_that_cannot_write_its_log_is_named_with_the_reason(tmp_path: Path) -> None:
    with (
        on_a_full_disk(tmp_path / "rank1.jsonl") as path,
        LocalEngine(path.parents[1]) as engine,
    ):
        ended = _run(engine, path.parent, small_case(ranks=2))
    assert ended.cause is not None
    assert (ended.cause.kind, ended.cause.rank) == ("disk", 1)
    assert "No space left on device" in ended.cause.text


def test_after_a_fault_the_next_trial_runs(engine: LocalEngine, tmp_path: Path) -> None:
    beside = tmp_path.with_name(f"{tmp_path.name}-beside")
    beside.mkdir()
    assert _run(engine, tmp_path, small_case(), fault=Fault(kind="kill", rank=0, step=1)).outcome == "failed"
    assert _run(engine, beside, small_case()).outcome == "done"


def test_a_trial_that_is_only_slow_passes_its_limit_and_no_rank_is_blamed(engine: LocalEngine, tmp_path: Path) -> None:
    slow = small_case(ranks=2, steps=1_000_000, options={"loader_delay_ms": 50.0})  # Whose ranks sleep, all alike.
    ended = _run(engine, tmp_path, slow, limit_s=8.0)
    assert ended.outcome == "timed_out"
    assert ended.cause is not None
    assert (ended.cause.kind, ended.cause.rank) == ("limit", None), ended.cause


def test_a_run_leaves_no_temporary_file(tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = short_path
    monkeypatch.setenv("TMPDIR", str(folder))
    (tmp_path / "run").mkdir()
    with LocalEngine(tmp_path) as own:
        own.machine()
        assert list(folder.iterdir())  # The socket of its forkserver.
        assert _run(own, tmp_path / "run", small_case(ranks=2)).outcome == "done"
    assert list(folder.iterdir()) == []  # Nor torch's cache, which another user could have made first.


def test_torch_writes_no_record_of_its_own_and_no_rank_waits_for_it() -> None:
    ours = environment({"PATH": "/bin"})
    assert ours["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"
    assert int(ours["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"]) * 4 <= 1000  # The watchdog sleeps four times as long.
    assert ours["PATH"] == "/bin"


def test_who_wants_torchs_own_record_gets_it_with_all_its_time() -> None:
    ours = environment({"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_BUFFER_SIZE": "7"})
    assert ours["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC" not in ours
    assert ours["TORCH_FR_BUFFER_SIZE"] == "7"


@pytest.mark.parametrize(
    ("error", "library"),
    [
        ("ImportError('libcupti.so.13: cannot open shared object file: No such file or directory')", "libcupti.so.13"),
        ("OSError('libcudart.so.13: cannot open shared object file: No such file or directory')", "libcudart.so.13"),
        ("ValueError('libcublas.so.*[0-9] not found in the system path [1, 2]')", "libcublas.so.*[0-9]"),
    ],
)
def test_a_torch_that_lacks_a_library_ends_the_agent_in_one_line_that_names_it(
    error: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(f"raise {error}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with LocalEngine(tmp_path) as engine, pytest.raises(InfrastructureFailed) as caught:
        engine.machine()
    said = str(caught.value)
    assert said.startswith(f"the agent of this machine failed: the library {library}, which torch")
    assert "reinstall torch with all its dependencies" in said
    assert "\n" not in said


def test_a_killed_agent_is_told_without_the_log_of_its_profiler(tmp_path: Path) -> None:
    others = set(psutil.Process().children())
    with LocalEngine(tmp_path) as engine:
        (agent,) = set(psutil.Process().children()) - others
        engine.machine()
        agent.kill()
        with pytest.raises(InfrastructureFailed, match=r"^the agent of this machine ended with code -9$"):
            _run(engine, tmp_path, small_case())


@pytest.mark.slow
def test_an_agent_that_is_stopped_is_ended_when_its_time_is_over(tmp_path: Path) -> None:
    others = set(psutil.Process().children())
    with LocalEngine(tmp_path, silent_s=0.5) as engine:
        (agent,) = set(psutil.Process().children()) - others
        engine.machine()
        agent.suspend()
        order = TrialOrder(run="r", trial=0, case=small_case(), limit_s=0.5)
        with pytest.raises(InfrastructureFailed, match=rf"\(process {agent.pid}\) did not answer in time"):
            engine.run(order, lambda _: None)
    assert not agent.is_running()
