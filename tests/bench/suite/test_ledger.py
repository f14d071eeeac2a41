"""The ledger of a suite run: what its records say, and what of it survives which death."""

from __future__ import annotations

import fcntl
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import InfrastructureFailed, Misuse
from bench.rank.messages import FailureCause
from bench.suite.ledger import (
    LEDGER,
    SCHEMA_VERSION,
    Begun,
    CaseBegun,
    CaseEnded,
    CaseState,
    Ended,
    LedgerWriter,
    Record,
    Resumed,
    TrialEnded,
    fold,
    is_written,
    read_ledger,
)
from collectors.files import try_lock
from tests.collectors.files_and_sockets.simulated_disk import Crash, SimulatedDisk

NAMES = ("ddp", "fsdp", "single")
BEGUN = Begun(suite="smoke", suite_run="20261123-010203-smoke-abc123", digest="d" * 64, time_ns=1)
CAUSE = FailureCause(kind="killed", rank=1, step=2, text="rank 1 was killed by SIGKILL in step 2")


def begin(case: str, run: str, attempt: int = 0) -> CaseBegun:
    return CaseBegun(case=case, run=run, attempt=attempt, time_ns=2)


def end_trial(case: str, run: str, trial: int, *, is_done: bool = True) -> TrialEnded:
    outcome, cause = ("done", None) if is_done else ("failed", CAUSE)
    return TrialEnded(case=case, run=run, trial=trial, attempt=0, outcome=outcome, cause=cause, time_ns=3)  # type: ignore[arg-type]


RECORDS: tuple[Record, ...] = (
    BEGUN,
    begin("ddp", "run-a"),
    begin("fsdp", "run-b"),
    end_trial("ddp", "run-a", 0),
    end_trial("fsdp", "run-b", 0, is_done=False),
    end_trial("ddp", "run-a", 1),
    CaseEnded(case="ddp", run="run-a", outcome="done", time_ns=4),
    CaseEnded(case="fsdp", run="run-b", outcome="failed", reason=CAUSE.text, time_ns=4),
    CaseEnded(case="single", run=None, outcome="skipped", reason="no GPU", time_ns=4),
    Ended(outcome="failed", time_ns=5),
)


def write(folder: Path, *records: Record) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    with LedgerWriter(folder) as ledger:
        for record in records:
            ledger.write(record)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    write(tmp_path, *RECORDS)
    assert read_ledger(tmp_path / LEDGER).records == RECORDS


def test_a_record_is_on_the_disk_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk(monkeypatch)
    with LedgerWriter(tmp_path) as ledger:
        for record in RECORDS:
            ledger.write(record)
            assert disk.after_power_loss(tmp_path / LEDGER) == (tmp_path / LEDGER).read_bytes()
    assert read_ledger(tmp_path / LEDGER).records == RECORDS


def test_a_crash_at_any_call_leaves_every_record_that_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for crash_at in range(7):  # Before it makes the file, syncs the folder, and syncs each record; then nowhere.
        folder = tmp_path / str(crash_at)
        folder.mkdir()
        written: list[Record] = []
        with monkeypatch.context() as patch:
            disk = SimulatedDisk(patch, crash_at=crash_at)
            with suppress(Crash), LedgerWriter(folder) as ledger:
                for record in RECORDS[:4]:
                    ledger.write(record)
                    written.append(record)
        whole = b"".join(msgspec.json.encode(record) + b"\n" for record in written)
        assert len(written) == max(0, crash_at - 2)
        assert disk.may_hold(folder / LEDGER) <= ({whole} if written else {whole, None})


def test_a_case_that_is_done_is_not_missing_and_one_that_failed_only_where_it_is_repeated() -> None:
    state = fold(RECORDS)
    assert state.missing(NAMES) == ("single",)
    assert state.missing(NAMES, is_failed_repeated=True) == ("fsdp", "single")
    assert state.outcome == "failed"


def test_a_case_without_an_end_goes_on_in_its_run_with_the_trials_that_are_missing() -> None:
    state = fold(RECORDS[:5])
    assert state.missing(NAMES) == NAMES
    assert state.case("ddp").run_to_resume == "run-a"
    assert state.case("ddp").trials_done == {0}
    assert state.case("fsdp").trials_done == frozenset()
    assert state.case("single").run_to_resume is None


def test_a_failed_case_begins_anew_when_it_is_repeated() -> None:
    assert fold(RECORDS).case("fsdp").run_to_resume is None
    state = fold([*RECORDS, Resumed(time_ns=6), begin("fsdp", "run-c")])
    assert state.case("fsdp").run == "run-c"
    assert state.case("fsdp").trials_done == frozenset()
    assert state.outcome is None


def test_a_further_attempt_of_the_same_run_keeps_its_trials() -> None:
    records: list[Record] = [BEGUN, begin("ddp", "run-a"), end_trial("ddp", "run-a", 0), begin("ddp", "run-a", 1)]
    state = fold(records)
    assert state.case("ddp").trials_done == {0}
    assert state.case("ddp").attempt == 1


def test_time_between_two_sessions_does_not_count() -> None:
    records: list[Record] = [
        BEGUN,
        CaseEnded(case="ddp", run=None, outcome="skipped", time_ns=1_000_000_001),
        Resumed(time_ns=9_000_000_000),
        Ended(outcome="done", time_ns=11_000_000_000),
    ]
    assert fold(records).took_s == 3.0


# Any beginning of any ledger


@st.composite
def ledgers(draw: st.DrawFn) -> list[Record]:
    """Records of sessions, each of which may die after any of them."""
    records: list[Record] = [BEGUN]
    trials = {name: draw(st.integers(1, 3)) for name in NAMES}
    for session in range(draw(st.integers(1, 4))):
        whole: list[Record] = [] if session == 0 else [Resumed(time_ns=session)]
        state = fold(records)
        for name in state.missing(NAMES, is_failed_repeated=draw(st.booleans())):
            run = state.case(name).run_to_resume or f"{name}-{session}"
            done = state.case(name).trials_done if run == state.case(name).run else frozenset()
            whole.append(begin(name, run))
            outcome = draw(st.sampled_from(["done", "failed", "interrupted"]))
            left = [trial for trial in range(trials[name]) if trial not in done]
            whole += [end_trial(name, run, trial) for trial in (left if outcome == "done" else left[:-1])]
            whole.append(CaseEnded(case=name, run=run, outcome=outcome, time_ns=session))  # type: ignore[arg-type]
        whole.append(Ended(outcome="done", time_ns=session))
        records += whole[: draw(st.integers(0, len(whole)))]
    return records


@given(ledgers(), st.data())
def test_a_resumed_suite_measures_exactly_what_has_no_done(records: list[Record], data: st.DataObject) -> None:
    known = records[: data.draw(st.integers(0, len(records)))]
    state = fold(known)
    done = {record.case for record in known if isinstance(record, CaseEnded) and record.outcome == "done"}
    assert set(state.missing(NAMES, is_failed_repeated=True)) == set(NAMES) - done
    assert set(state.missing(NAMES)) <= set(NAMES) - done
    ran = [(record.case, record.run, record.trial) for record in known if isinstance(record, TrialEnded)]
    for name in state.missing(NAMES):
        run = state.case(name).run_to_resume
        assert state.case(name).trials_done == {trial for case, of_run, trial in ran if (case, of_run) == (name, run)}
    assert len(set(ran)) == len(ran)


@given(ledgers(), st.data())
def test_a_ledger_that_is_cut_anywhere_holds_the_records_before(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record], data: st.DataObject
) -> None:
    lines = [msgspec.json.encode(record) + b"\n" for record in records]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    folder = tmp_path_factory.mktemp("cut")
    (folder / LEDGER).write_bytes(whole[:cut])
    kept = len(whole[:cut].splitlines()) - (0 if whole[:cut].endswith(b"\n") or not cut else 1)
    with LedgerWriter(folder) as ledger:
        assert ledger.state == fold(records[:kept])
        ledger.write(Resumed(time_ns=9))
    assert read_ledger(folder / LEDGER).records == (*records[:kept], Resumed(time_ns=9))


# What is refused


def test_a_last_line_without_meaning_is_cut_off(tmp_path: Path) -> None:
    """A file system may leave zeros where a machine lost its power."""
    write(tmp_path, *RECORDS[:3])
    with (tmp_path / LEDGER).open("ab") as file:
        file.write(b"\0" * 40 + b"\n")
    write(tmp_path, *RECORDS[3:])
    assert read_ledger(tmp_path / LEDGER).records == RECORDS


@pytest.mark.parametrize("line", [b'{"type":"nonsense"}', b'{"type":"nonsense","schema_version":3}'])
def test_a_broken_line_before_others_is_named(tmp_path: Path, line: bytes) -> None:
    write(tmp_path, *RECORDS)
    lines = (tmp_path / LEDGER).read_bytes().splitlines(keepends=True)
    (tmp_path / LEDGER).write_bytes(b"".join([*lines[:2], line + b"\n", *lines[2:]]))
    with pytest.raises(Misuse, match=r"line 3 cannot be read .* without --resume"):
        read_ledger(tmp_path / LEDGER)


@pytest.mark.parametrize("line", [b'{"type":"begun","schema_version":99}', b'{"type":"newly","schema_version":99}'])
def test_the_ledger_of_a_newer_version_is_refused(tmp_path: Path, line: bytes) -> None:
    (tmp_path / LEDGER).write_bytes(line + b"\n")
    with pytest.raises(Misuse, match=r"schema version 99 is newer than 3"):
        LedgerWriter(tmp_path)


def test_a_ledger_that_is_being_written_is_refused(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as ledger:
        ledger.write(BEGUN)
        assert is_written(tmp_path)
        with pytest.raises(Misuse, match="is being run by process"):
            LedgerWriter(tmp_path)
    assert not is_written(tmp_path)


def test_a_runner_of_another_host_is_named_as_such(tmp_path: Path) -> None:
    """Within a PID namespace, the kernel lists locks of processes outside as those of another host: without one."""
    program = (
        "import sys; from pathlib import Path; from bench.suite.ledger import LedgerWriter;"
        " LedgerWriter(Path(sys.argv[1]))"
    )
    elsewhere = ["unshare", "--pid", "--fork", "--mount-proc", "--uts", sys.executable, "-P", "-c", program]
    try:
        if subprocess.run([*elsewhere[:5], "true"], capture_output=True).returncode:
            pytest.skip("no right to make a PID namespace here")
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    with LedgerWriter(tmp_path) as ledger:
        ledger.write(BEGUN)
        refused = subprocess.run([*elsewhere, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert "is being run by a process that this machine does not list, perhaps on another host; wait" in refused.stderr


def test_two_runners_whose_file_system_does_not_lock_between_hosts_are_noticed(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as ledger:
        ledger.write(BEGUN)
        with (tmp_path / LEDGER).open("ab") as other:  # As another host's runner does, whose lock is not seen here.
            other.write(msgspec.json.encode(RECORDS[1]) + b"\n")
        with pytest.raises(InfrastructureFailed, match="is also written by another runner, perhaps on another host"):
            ledger.write(RECORDS[2])


def test_only_a_ledger_that_its_writer_holds_is_being_written(tmp_path: Path) -> None:
    assert not is_written(tmp_path)
    with LedgerWriter(tmp_path):
        (linked := tmp_path / "linked").mkdir()
        (linked / LEDGER).symlink_to(tmp_path / LEDGER)
        assert is_written(tmp_path)
        assert not is_written(linked)
    with (tmp_path / LEDGER).open() as other:  # Who asks at the same time does not write.
        assert try_lock(other.fileno(), fcntl.LOCK_SH)
        assert not is_written(tmp_path)


def test_a_last_line_of_this_version_without_meaning_is_cut_off(tmp_path: Path) -> None:
    write(tmp_path, *RECORDS[:2])
    with (tmp_path / LEDGER).open("ab") as file:
        file.write(b'{"type":"nonsense","schema_version":%d}\n' % SCHEMA_VERSION)
    assert read_ledger(tmp_path / LEDGER).records == RECORDS[:2]


def test_a_folder_without_a_ledger_is_no_suite_run(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="No such file"):
        read_ledger(tmp_path / LEDGER)


def test_a_disk_that_fills_up_leaves_no_half_line(tmp_path: Path) -> None:
    write(tmp_path, *RECORDS[:2])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with LedgerWriter(tmp_path) as ledger:
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / LEDGER).stat().st_size + 20, limits[1]))
        try:
            with pytest.raises(InfrastructureFailed, match="cannot be written: File too large; make room"):
                ledger.write(RECORDS[2])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        ledger.write(RECORDS[3])
    assert read_ledger(tmp_path / LEDGER).records == (*RECORDS[:2], RECORDS[3])


def test_a_dropped_case_is_over_and_is_not_measured_again() -> None:
    dropped = CaseEnded(case="ddp", run="run-a", outcome="dropped", reason="fsdp is 2.00x as fast", time_ns=4)
    state = fold((BEGUN, begin("ddp", "run-a"), end_trial("ddp", "run-a", 0), dropped))
    assert state.missing(("ddp", "fsdp"), is_failed_repeated=True) == ("fsdp",)
    assert state.case("ddp").run_to_resume is None


def test_a_ledger_of_before_there_were_races_is_read(tmp_path: Path) -> None:
    path = tmp_path / LEDGER
    path.write_bytes(
        b'{"type":"begun","suite":"smoke","suite_run":"20261123-010203-smoke-abc123","digest":"d","time_ns":1,'
        b'"tags":[],"schema_version":2}\n'
        b'{"type":"case_ended","case":"ddp","run":null,"outcome":"left_out","time_ns":2}\n'
    )
    assert fold(read_ledger(path).records).case("ddp").outcome == "left_out"


def test_a_case_that_did_not_run_keeps_its_run_its_trials_and_why() -> None:
    out = CaseEnded(case="ddp", run=None, outcome="left_out", reason="no time", is_infrastructure=True, time_ns=9)
    state = fold((BEGUN, begin("ddp", "run-a", attempt=1), end_trial("ddp", "run-a", 0), out)).case("ddp")
    assert state == CaseState(
        run="run-a",
        attempt=1,
        trials_done=frozenset({0}),
        outcome="left_out",
        reason="no time",
        is_infrastructure=True,
        begun_ns=2,
        ended_ns=9,
    )


def test_another_run_of_a_case_starts_over_and_the_same_one_goes_on() -> None:
    records = (BEGUN, begin("ddp", "run-a"), end_trial("ddp", "run-a", 0))
    later = CaseBegun(case="ddp", run="run-b", attempt=1, time_ns=7)
    again = CaseBegun(case="ddp", run="run-a", attempt=1, time_ns=7)
    assert fold((*records, later)).case("ddp") == CaseState(run="run-b", attempt=1, begun_ns=7)
    assert fold((*records, again)).case("ddp") == CaseState(
        run="run-a", attempt=1, trials_done=frozenset({0}), begun_ns=2
    )


def test_a_link_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(msgspec.json.encode(BEGUN) + b"\n")
    (tmp_path / LEDGER).symlink_to("other")
    with pytest.raises(Misuse, match=r"cannot be read: .*; `observatory suite show` lists suite runs"):
        read_ledger(tmp_path / LEDGER)
