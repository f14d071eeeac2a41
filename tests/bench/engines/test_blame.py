"""The rank that is blamed is the one whose own doing ended the trial."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

import msgspec
import pytest

from bench.engines.root_cause import RankEnd, _behind, encoded, joint_cause, root_cause
from bench.rank.messages import FailureCause, TrialEnded
from collectors.rank.flight_recorder import reached
from collectors.rank.reached import Reached
from collectors.sample_log import Ended
from tests.collectors.made_nccl_record import MadeRecord

FOLDER = "/runs/r"


def _root_cause(ends: tuple[RankEnd, ...], folder: str) -> FailureCause | None:
    return root_cause(ends, folder, limit_s=60)


def _joint_cause(*nodes: tuple[RankEnd, ...]) -> FailureCause | None:
    parts = [TrialEnded(run="r", trial=0, outcome="failed", ends=encoded(ends)) for ends in nodes]
    return joint_cause(parts, FOLDER, 60.0)


def _end(
    rank: int,
    *,
    error: str | None = None,
    code: int | None = 1,
    at_s: float = 1.0,
    step: int = 4,
    has_result: bool = True,
    disk: str | None = None,
    said: str = "",
    is_moving: bool = False,
    reached: Mapping[str, Reached] | None = None,
) -> RankEnd:
    kind, _, text = (error or "").partition(": ")
    result = Ended(trial=0, time_ns=0, step=step, error_type=kind or None, error=text if error else None)
    return RankEnd(
        rank=rank,
        result=result if has_result else None,
        exit_code=code,
        ended_ns=int(1e9 * at_s),
        step=step,
        disk=disk,
        output=said,
        is_moving=is_moving,
        reached=reached,
    )


def _good(rank: int) -> RankEnd:
    return _end(rank, code=0)


def _lost_peer(rank: int, at_s: float = 1.0) -> RankEnd:
    return _end(rank, error="RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:1", at_s=at_s)


def _hung(rank: int, **fields: Any) -> RankEnd:
    return _end(rank, code=None, has_result=False, at_s=9.0, **fields)


def _on_gloo(*issued: int) -> dict[str, Reached]:
    """How far a rank came in the groups 0, 1, ..."""
    return {str(group): Reached(issued=number, started=None, completed=None) for group, number in enumerate(issued)}


def test_nobody_is_blamed_when_all_ended_well() -> None:
    assert _root_cause((_good(0), _good(1)), FOLDER) is None


@pytest.mark.parametrize(
    ("culprit", "kind"),
    [
        (_end(2, code=-9, has_result=False, at_s=3.0), "killed"),
        (_end(2, error="ValueError: no", at_s=3.0), "error"),
        (_end(2, error="SystemExit: 7", code=1, at_s=3.0), "error"),
        (_end(2, code=0, has_result=False, at_s=3.0), "left"),
        (_hung(2), "hung"),
        (_end(2, code=74, has_result=False, disk="No space left on device: rank2.jsonl"), "disk"),
        (_end(2, error="DiskFull: Disk quota exceeded: trace.json", at_s=3.0), "disk"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_cause_is_blamed_although_its_peers_failed_before_it(culprit: RankEnd, kind: str) -> None:
    cause = _root_cause((_lost_peer(0, at_s=1.0), _lost_peer(1, at_s=2.0), culprit, _lost_peer(3)), FOLDER)
    assert cause is not None
    assert (cause.rank, cause.kind, cause.step) == (2, kind, 4)
    assert cause.text.endswith("in step 4; its last lines are in /runs/r/rank2.err")


@pytest.mark.parametrize(
    ("kills", "limit_bytes", "text"),
    [
        (
            1,
            3 << 30,
            "rank 0 ran out of memory and was killed by the kernel (SIGKILL; its control group may use 3 GiB)",
        ),
        (2, None, "rank 0 ran out of memory and was killed by the kernel (SIGKILL)"),
        (None, 3 << 30, "rank 0 was killed by SIGKILL (possibly by the kernel's out-of-memory killer)"),
        (0, 3 << 30, "rank 0 was killed by SIGKILL"),
    ],
)
def test_a_killed_rank_ran_out_of_memory_if_the_kernel_counts_a_kill(
    kills: int | None, limit_bytes: int | None, text: str
) -> None:
    killed = replace(_end(0, code=-9, has_result=False), memory_kills=kills, memory_limit_bytes=limit_bytes)
    for cause in (_root_cause((killed, _lost_peer(1)), FOLDER), _joint_cause((killed,), (_lost_peer(1),))):
        assert cause is not None
        assert cause.text == f"{text} in step 4; its last lines are in /runs/r/rank0.err"


def test_another_signal_is_no_lack_of_memory() -> None:
    killed = replace(_end(0, code=-11, has_result=False), memory_kills=1)
    cause = _root_cause((killed,), FOLDER)
    assert cause is not None
    assert cause.text.startswith("rank 0 was killed by SIGSEGV in step 4; ")


def test_the_last_lines_are_the_ranks_own_and_not_the_profilers() -> None:
    chatter = "USDT:2026-11-25 21:37:26 194:194 SyncActivityProfilerHandler.cpp:52] profiler_start"
    warning = chatter.replace("USDT", "WARNING")
    cause = _root_cause((_end(0, error="ValueError: no", said=f"own\n{chatter}\n{warning}\n{chatter}\n"),), FOLDER)
    assert cause is not None
    assert cause.last_lines == ("own", warning)


def test_a_signal_outranks_an_error_which_outranks_leaving_and_hanging() -> None:
    ends = [
        _hung(0),
        _end(1, code=0, has_result=False),
        _end(2, error="ValueError: no"),
        _end(3, code=-11, has_result=False),
    ]
    blamed = []
    while ends:
        cause = _root_cause(tuple(ends), FOLDER)
        assert cause is not None
        blamed.append(cause.rank)
        ends = [end for end in ends if end.rank != cause.rank]
    assert blamed == [3, 2, 1, 0]


def test_the_abort_of_a_collective_watchdog_is_an_echo_however_many_stacks_follow_it() -> None:
    said = "[Rank 0] Watchdog caught collective operation timeout: ...\n" + "Thread 0x1: a stack\n" * 50
    cause = _root_cause((_end(0, code=-6, has_result=False, said=said), _hung(1)), FOLDER)
    assert cause is not None
    assert (cause.rank, cause.kind) == (1, "hung")


def test_of_hung_ranks_the_one_that_entered_the_fewest_collectives_is_blamed() -> None:
    cause = _root_cause(
        (_hung(0, reached=_on_gloo(8)), _hung(1, reached=_on_gloo(7)), _hung(2, reached=_on_gloo(8))), FOLDER
    )
    assert cause is not None
    assert cause.rank == 1


def _gloo_record(*groups: str) -> bytes:
    """What torch 2.13 records of collectives on gloo; it records no messages."""
    numbers: Counter[str] = Counter()
    entries = []
    for number, group in enumerate(groups):
        numbers[group] += 1
        entries.append(
            {
                "record_id": number,
                "process_group": [group, ""],
                "collective_seq_id": numbers[group],
                "profiling_name": "gloo:all_reduce",
                "is_p2p": False,
                "input_sizes": [[2]],
                "output_sizes": [[2]],
                "input_dtypes": ["Float"],
                "output_dtypes": ["Float"],
                "state": "scheduled",
            }
        )
    return msgspec.json.encode({"entries": entries})


def test_a_rank_that_is_in_fewer_groups_is_not_blamed_for_its_fewer_collectives() -> None:
    """Rank 1 hangs before its message to rank 2, which is in group 0 alone; rank 0 waits for rank 1 in group 1."""
    records = (_gloo_record("0", "1", "1"), _gloo_record("0", "1"), _gloo_record("0"))
    hung = tuple(_hung(rank, reached=reached(record, has_states=False)) for rank, record in enumerate(records))
    cause = _root_cause(hung, FOLDER)
    assert cause is not None
    assert cause.rank == 1
    assert "it has not issued what others have" in cause.text


def test_where_gloo_s_collectives_do_not_tell_the_step_does() -> None:
    cause = _root_cause((_hung(0, reached=_on_gloo(2, 2), step=8), _hung(1, reached=_on_gloo(2), step=7)), FOLDER)
    assert cause is not None
    assert cause.rank == 1
    alike = _root_cause((_hung(0, reached=_on_gloo(2, 2)), _hung(1, reached=_on_gloo(2))), FOLDER)
    assert alike is not None
    assert alike.rank is None
    assert "TORCH_NCCL" not in alike.text


def test_of_hung_ranks_without_flight_records_the_one_furthest_behind_is_blamed() -> None:
    cause = _root_cause((_hung(0, step=5), _hung(1, step=4)), FOLDER)
    assert cause is not None
    assert cause.rank == 1


def test_ranks_that_hang_at_the_same_place_are_told_from_each_other_by_nothing() -> None:
    cause = _root_cause((_hung(0, reached=_on_gloo(8)), _hung(1, reached=_on_gloo(8))), FOLDER)
    assert cause is not None
    assert cause.rank is None
    assert "all ranks hung in step 4" in cause.text


def test_when_all_only_lost_their_peers_the_first_is_named_as_such() -> None:
    cause = _root_cause((_lost_peer(0, at_s=2.0), _lost_peer(1, at_s=1.0)), FOLDER)
    assert cause is not None
    assert cause.rank == 1
    assert "the first to lose its peers" in cause.text


def test_a_trial_that_was_only_slow_is_no_hang_and_blames_nobody() -> None:
    cause = _root_cause((_hung(0, step=7, is_moving=True), _hung(1, step=6, is_moving=True)), FOLDER)
    assert cause is not None
    assert (cause.kind, cause.rank, cause.step) == ("limit", None, 6)
    assert "its limit of 60 s ended, and no rank hung; increase --limit" in cause.text


def test_a_rank_that_stands_still_is_blamed_though_its_peer_moved_on() -> None:
    cause = _root_cause((_hung(0, step=7, is_moving=True), _hung(1, step=6)), FOLDER)
    assert cause is not None
    assert (cause.kind, cause.rank) == ("hung", 1)


def test_a_lost_forkserver_is_no_ranks_doing() -> None:
    cause = _root_cause((_end(0, code=255, has_result=False), _end(1, code=255, has_result=False)), FOLDER)
    assert cause is not None
    assert (cause.kind, cause.rank) == ("agent", None)


def test_a_forkserver_is_lost_for_lack_of_memory_if_the_kernel_counts_a_kill() -> None:
    lost = tuple(
        replace(_end(rank, code=255, has_result=False), memory_kills=1, memory_limit_bytes=3 << 30) for rank in (0, 1)
    )
    cause = _root_cause(lost, FOLDER)
    assert cause is not None
    assert cause.text == (
        "the forkserver, from which all ranks are forked, is gone: its node ran out of memory, and the kernel killed it"
        " or a rank (SIGKILL; its control group may use 3 GiB)"
    )
    none_killed = tuple(replace(end, memory_kills=0) for end in lost)
    cause = _root_cause(none_killed, FOLDER)
    assert cause is not None
    assert cause.text.endswith(" is gone")


def test_a_forkserver_lost_on_one_of_several_nodes_is_no_ranks_doing() -> None:
    lost = tuple(_end(rank, code=255, has_result=False, at_s=2.0) for rank in (2, 3))
    cause = _joint_cause((_lost_peer(0), _lost_peer(1, at_s=1.0)), lost)
    assert cause is not None
    assert (cause.kind, cause.rank) == ("agent", None)
    assert cause.text == "the forkserver, from which ranks 2, 3 are forked, is gone"


def test_one_rank_of_a_node_that_leaves_with_255_is_blamed_itself() -> None:
    left = (_end(2, code=255, has_result=False), _lost_peer(3, at_s=2.0))
    cause = _joint_cause((_lost_peer(0, at_s=2.0), _lost_peer(1, at_s=2.0)), left)
    assert cause is not None
    assert (cause.kind, cause.rank) == ("left", 2)


def _by_pairs(marks: list[dict[str, int | None]]) -> list[int]:
    """Return the ranks that another waits for and that wait for none, by comparing each pair."""

    def is_before(first: int, second: int) -> bool:
        pairs = ((marks[first][key], marks[second][key]) for key in marks[first].keys() & marks[second].keys())
        return any(one is not None and other is not None and one < other for one, other in pairs)

    pairs = list(permutations(range(len(marks)), 2))
    waited_for = {first for first, second in pairs if is_before(first, second)}
    return sorted(waited_for - {second for first, second in pairs if is_before(first, second)})


def test_who_is_behind_is_as_by_comparing_each_pair() -> None:
    generator = random.Random(0)
    for _ in range(500):
        marks = [
            {key: generator.choice((None, 0, 1, 2)) for key in generator.sample("ABC", generator.randint(1, 3))}
            for _ in range(generator.randint(2, 6))
        ]
        hung = [
            _hung(rank, reached={key: Reached(issued=5, started=None, completed=at) for key, at in of_rank.items()})
            for rank, of_rank in enumerate(marks)
        ]
        behind, _ = _behind(hung)
        assert [end.rank for end in behind] == _by_pairs(marks)


class _CountedMarks(dict[str, Reached]):
    """What a rank has reached; counts how often it is read."""

    reads = 0

    def items(self) -> Any:
        _CountedMarks.reads += len(self)
        return super().items()

    def keys(self) -> Any:
        _CountedMarks.reads += len(self)
        return super().keys()

    def __getitem__(self, key: str) -> Reached:
        _CountedMarks.reads += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("ranks", [64, 4096])
def test_work_to_blame_hung_ranks_is_linear_in_their_number(ranks: int) -> None:
    _CountedMarks.reads = 0
    hung = tuple(_hung(rank, reached=_CountedMarks(_on_gloo(8 - (rank == ranks - 1), 8))) for rank in range(ranks))
    cause = _root_cause(hung, FOLDER)
    assert cause is not None
    assert cause.rank == ranks - 1
    assert 0 < _CountedMarks.reads <= 16 * ranks


def test_an_error_of_nccls_own_is_no_echo() -> None:
    mistake = _end(1, error="DistBackendError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)")
    echo = _end(0, error="DistBackendError: NCCL error: remote process exited or there was a network error", at_s=0.5)
    cause = _root_cause((echo, mistake), FOLDER)
    assert cause is not None
    assert cause.rank == 1


def _stopped(rank: int, record: MadeRecord, **fields: Any) -> RankEnd:
    """A rank on NCCL that hung, with the flight record that it wrote."""
    return _hung(rank, reached=reached(record.json(), has_states=True), **fields)


def _reducing(*states: str, is_timed: bool = False) -> MadeRecord:
    record = MadeRecord(is_timed=is_timed)
    for state in states:
        record.collective("nccl:all_reduce", state=state)  # type: ignore[arg-type]
    return record


def test_a_host_that_issued_less_than_the_others_is_blamed_though_it_is_last_to_end() -> None:
    waiting = _reducing("completed", "scheduled", "scheduled")
    cause = _root_cause((_stopped(0, waiting), _stopped(1, _reducing("completed")), _stopped(2, waiting)), FOLDER)
    assert cause is not None
    assert (cause.rank, cause.kind) == (1, "hung")
    assert cause.text == (
        "rank 1 hung: it has not issued what others have in step 4; its last lines are in /runs/r/rank1.err"
    )


def test_of_hosts_that_issued_alike_the_one_whose_device_has_not_begun_is_blamed() -> None:
    waiting, stuck = (
        _reducing("completed", "started", is_timed=True),
        _reducing("completed", "scheduled", is_timed=True),
    )
    cause = _root_cause((_stopped(0, waiting), _stopped(1, waiting), _stopped(2, stuck)), FOLDER)
    assert cause is not None
    assert cause.rank == 2
    assert "its device has not begun what others have" in cause.text


def test_a_device_that_has_not_completed_what_others_have_is_blamed() -> None:
    done, stuck = _reducing("completed", "completed"), _reducing("completed", "scheduled")
    cause = _root_cause((_stopped(0, done), _stopped(1, stuck)), FOLDER)
    assert cause is not None
    assert cause.rank == 1
    assert "its device has not completed what others have" in cause.text


def test_where_torch_times_no_collectives_the_setting_that_would_tell_is_named() -> None:
    alike = _reducing("completed", "scheduled")
    cause = _root_cause((_stopped(0, alike), _stopped(1, alike)), FOLDER)
    assert cause is not None
    assert cause.rank is None
    assert "all ranks hung in step 4, all at the same collective" in cause.text
    assert cause.text.endswith("; with TORCH_NCCL_ENABLE_TIMING=1 torch records which devices have begun it")


def test_devices_that_all_began_the_same_are_told_from_each_other_by_nothing() -> None:
    alike = _reducing("completed", "started", is_timed=True)
    cause = _root_cause((_stopped(0, alike), _stopped(1, alike)), FOLDER)
    assert cause is not None
    assert cause.rank is None
    assert "TORCH_NCCL" not in cause.text


def test_a_stage_of_a_pipeline_is_blamed_by_its_messages_and_not_by_how_many_it_has() -> None:
    """Stage 2 hangs in its second step: stage 1 waits for its gradient, stage 3 for its activation, stage 0 for 1."""
    stages = [MadeRecord(rank=rank) for rank in range(4)]
    for rank, stage in enumerate(stages):
        for kind, peer in (("recv", rank - 1), ("send", rank + 1), ("recv", rank + 1), ("send", rank - 1)):
            if 0 <= peer < 4:
                stage.batch([(kind, peer, (4,))])  # type: ignore[list-item]
    stages[0].batch([("send", 1, (4,))], state="completed").batch([("recv", 1, (4,))], state="scheduled")
    stages[1].batch([("recv", 0, (4,))], state="completed").batch([("send", 2, (4,))], state="scheduled")
    stages[1].batch([("recv", 2, (4,))], state="scheduled")
    stages[3].batch([("recv", 2, (4,))], state="scheduled")
    cause = _root_cause(tuple(_stopped(rank, stage) for rank, stage in enumerate(stages)), FOLDER)
    assert cause is not None
    assert cause.rank == 2


def test_a_rank_that_could_not_write_its_record_is_blamed() -> None:
    cause = _root_cause((_stopped(0, _reducing("completed", "scheduled")), _hung(1)), FOLDER)
    assert cause is not None
    assert cause.rank == 1
    assert "left no record" in cause.text


def test_several_that_others_wait_for_are_all_named() -> None:
    ahead, behind = _reducing("completed", "scheduled"), _reducing("completed")
    cause = _root_cause((_stopped(0, ahead), _stopped(1, behind), _stopped(2, behind)), FOLDER)
    assert cause is not None
    assert cause.rank is None
    assert "ranks 1, 2 hung in step 4 while others waited for them" in cause.text


def test_a_rank_that_raised_is_blamed_and_not_those_that_we_ended_with_a_record_or_without() -> None:
    waiting = _reducing("completed", "scheduled")
    raised = _end(1, error="ValueError: no", code=None)  # It was still on its way out when its peers' time was over.
    cause = _root_cause((_stopped(0, waiting), raised, _hung(2)), FOLDER)
    assert cause is not None
    assert (cause.rank, cause.kind) == (1, "error")


def test_a_rank_that_was_killed_is_blamed_and_not_peers_whose_watchdog_saw_it() -> None:
    said = "[rank0]:[E] ProcessGroupNCCL.cpp:2057] Process group watchdog thread terminated with exception: aborted"
    killed = _end(1, code=-9, has_result=False, at_s=2.0)
    cause = _root_cause((_end(0, code=-6, has_result=False, said=said), killed, _hung(2)), FOLDER)
    assert cause is not None
    assert (cause.rank, cause.kind) == (1, "killed")


def test_a_rank_without_its_gpu_is_the_nodes_failure_in_one_line() -> None:
    ends = (_lost_peer(0, at_s=0.5), _end(1, error="NoDevice: CUDA shows the rank no GPU", said="a traceback", step=0))
    cause = _root_cause(ends, FOLDER)
    text = "rank 1 cannot use its GPU: CUDA shows the rank no GPU; see /runs/r/rank1.err"
    assert cause == FailureCause(kind="agent", rank=1, step=None, text=text)


def test_of_ranks_that_all_gave_up_waiting_the_one_that_the_others_wait_for_hung() -> None:
    error = "RuntimeError: [gloo] Timed out waiting 4800ms for recv operation to complete"
    ends = (
        _end(0, error=error, at_s=1.0, reached=_on_gloo(8)),
        _end(1, error=error, at_s=1.1, reached=_on_gloo(7)),
        _lost_peer(2, at_s=1.2),
    )
    cause = _root_cause(ends, FOLDER)
    assert cause is not None
    assert (cause.kind, cause.rank) == ("hung", 1)


def test_the_cause_among_ranks_of_two_nodes_is_that_of_all_of_them_together() -> None:
    """Each node alone would blame a rank of its own: node 0 has only one that lost a peer."""
    record = {"data": Reached(issued=3, started=None, completed=2)}
    nodes = [
        (_lost_peer(0, at_s=1.5), _hung(1, reached=record)),
        (_end(2, error="ValueError: wrong", at_s=2.0), _lost_peer(3, at_s=1.7)),
    ]
    parts = [
        msgspec.json.decode(
            msgspec.json.encode(TrialEnded(run="r", trial=0, outcome="failed", ends=encoded(ends))), type=TrialEnded
        )
        for ends in nodes
    ]
    assert joint_cause(parts, FOLDER, 60.0) == _root_cause((*nodes[0], *nodes[1]), FOLDER)
    assert joint_cause(reversed(parts), FOLDER, 60.0) == _root_cause((*nodes[0], *nodes[1]), FOLDER)
