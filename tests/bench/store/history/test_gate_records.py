"""What the gate keeps comes back from SQLite and PostgreSQL alike, and an older store is brought up to date for it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text, update

from bench.errors import InfrastructureFailed
from bench.gate.accept import accept
from bench.gate.detector.state import SCHEMA_VERSION as DETECTOR_VERSION
from bench.gate.nightly import judge_nights
from bench.gate.standing import Judged, hardware_of, judged_suites
from bench.gate.verdicts import (
    PORTION,
    AcceptedLevel,
    GateState,
    Raced,
    judged_runs,
    load_accepted,
    load_states,
    load_verdicts,
    save_accepted,
    save_night,
)
from bench.gate.verdicts import SCHEMA_VERSION as GATE_VERSION
from bench.results.estimate import estimate
from bench.store.database import connect, parse_url
from bench.store.history import History
from bench.store.schema import GATE_STATES, MIGRATIONS, RUNS, upgrade
from bench.store.summary import encode, series_of
from collectors.metrics.probes import RUN_COLLECTIVE_BUS_BANDWIDTH
from tests.bench.made.examples import make_summary
from tests.bench.made.fake_nights import STEP_S, FakeNights, fill

NIGHTS = 14


def test_states_verdicts_and_accepted_levels_come_back(store_url: str) -> None:
    with History(store_url) as history:
        nights = FakeNights(history)
        fill(nights, NIGHTS)
        judged = judge_nights(history, "nightly")
    with History(store_url) as history:
        assert load_verdicts(history, "nightly") == sorted(judged, key=lambda one: (one.started_ns, one.key))
        states = load_states(history, "nightly")
        assert {one.last_run for one in states.values()} == {f"run{NIGHTS - 1:04}-ddp"}
        levels, after = accept(
            states.values(), case="ddp", metric=None, who="ada", because="agreed", now_ns=1_700_000_000_000_000_000
        )
        save_accepted(history, levels, states, after)
        assert load_accepted(history, "nightly") == {one.key: one for one in levels}
        nights.history = history
        nights.add(NIGHTS, {"ddp": STEP_S})
        (first, *_) = judge_nights(history, "nightly")
        assert first.number == judged[-1].number + 1
        assert len(load_verdicts(history, "nightly", suite_run=f"night{NIGHTS:04}")) == len(states)


KILLED = """
import os, signal, sys
from sqlalchemy import Engine, event
from bench.gate.nightly import judge_nights
from bench.store.history import History

url, table, portion = sys.argv[1], sys.argv[2], int(sys.argv[3])
written = []

@event.listens_for(Engine, "after_cursor_execute")
def count(connection, cursor, statement, *_):
    if statement.startswith(f"INSERT INTO {table}"):
        written.append(statement)
        if len(written) == portion:
            os.kill(os.getpid(), signal.SIGKILL)

with History(url) as history:
    judge_nights(history, "nightly")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("table", "portion"), [("gate_states", 2), ("gate_verdicts", 1)])
def test_a_night_whose_judge_is_killed_between_portions_is_not_judged_at_all(
    store_url: str, table: str, portion: int
) -> None:
    sizes = [{"collective": "all_reduce", "algorithm": "ring", "size": str(size)} for size in range(PORTION // 2)]
    with History(store_url) as history:
        nights = FakeNights(history)
        for night in range(2):
            for case in ("ddp", "fsdp", "tp"):
                estimates = tuple(estimate(RUN_COLLECTIVE_BUS_BANDWIDTH, [1.0, 1.1], **labels) for labels in sizes)
                nights.add_run(night, case, nights.trials(STEP_S), estimates=estimates, scaling=())
            if not night:
                judge_nights(history, "nightly")
        before = load_states(history, "nightly"), load_verdicts(history, "nightly")
    assert len(before[0]) > PORTION
    died = subprocess.run([sys.executable, "-c", KILLED, store_url, table, str(portion)], capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    with History(store_url) as history:
        assert (load_states(history, "nightly"), load_verdicts(history, "nightly")) == before
        judged = judge_nights(history, "nightly")
        assert len(judged) == len(before[0]) == len(load_verdicts(history, "nightly", suite_run="night0001"))
        assert {known.revision for known in load_states(history, "nightly").values()} == {2}


def test_verdicts_outlive_the_run_that_they_are_of(store_url: str) -> None:
    with History(store_url) as history:
        fill(FakeNights(history), 2)
        judged = judge_nights(history, "nightly")
        history.forget("run0000-ddp")
        assert load_verdicts(history, "nightly") == sorted(judged, key=lambda one: (one.started_ns, one.key))


def test_a_state_that_cannot_be_read_is_refused(store_url: str) -> None:
    with History(store_url) as history:
        fill(FakeNights(history), 1)
        judge_nights(history, "nightly")
        with history.transaction() as connection:
            connection.execute(text("UPDATE gate_states SET state_json = '{'"))
        with pytest.raises(InfrastructureFailed, match=r"the gate's state for .* cannot be read"):
            load_states(history, "nightly")


def test_runs_of_an_older_store_get_their_series(store_url: str) -> None:
    summary = make_summary()
    engine = connect(parse_url(store_url), writable=True)
    upgrade(engine, MIGRATIONS[:2])
    row = {
        "id": summary.run,
        "key": summary.case.key(),
        "strategy": "ddp",
        "ranks": 2,
        "device": "cpu",
        "precision": "fp32",
        "hardware": summary.hardware,
        "started_ns": 1,
        "ended_ns": 2,
        "outcome": "done",
        "folder": "/runs/a",
        "case_json": "{}",
        "machine_json": "{}",
        "summary_json": encode(summary).decode(),
    }
    with engine.begin() as connection:
        names = ", ".join(row)
        connection.execute(text(f"INSERT INTO runs ({names}) VALUES ({', '.join(f':{name}' for name in row)})"), row)
    upgrade(engine)
    with engine.begin() as connection:
        found = connection.execute(RUNS.select()).one()
    engine.dispose()
    assert found.series == series_of(summary.case, summary.hardware)
    assert (found.environment, found.hosts, found.is_rerun) == (None, None, None)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """In SQLite, with five nights of two cases that are judged."""
    with History(f"sqlite:///{tmp_path}/history.sqlite") as history:
        fill(FakeNights(history), 5, lambda number: {"ddp": STEP_S, "fsdp": STEP_S})
        judge_nights(history, "nightly")
        yield history


def _with_versions(state: GateState, *, own: int, detector: int) -> str:
    changed = msgspec.structs.replace(
        state, schema_version=own, detector=msgspec.structs.replace(state.detector, schema_version=detector)
    )
    return msgspec.json.encode(changed).decode()


@pytest.mark.parametrize(
    ("own", "detector", "says"),
    [
        (
            GATE_VERSION + 1,
            DETECTOR_VERSION,
            f"has schema version {GATE_VERSION + 1}, this program reads {GATE_VERSION}",
        ),
        (
            GATE_VERSION,
            DETECTOR_VERSION + 1,
            f"has schema version {DETECTOR_VERSION + 1}, this program reads {DETECTOR_VERSION}",
        ),
    ],
)
def test_a_state_of_a_newer_version_is_refused_with_both_versions(
    history: History, own: int, detector: int, says: str
) -> None:
    (known, *_) = load_states(history, "nightly").values()
    with history.transaction() as connection:
        changed = _with_versions(known.state, own=own, detector=detector)
        connection.execute(update(GATE_STATES).values(state_json=changed))
    with pytest.raises(InfrastructureFailed, match=f"{says}; use the version that wrote it"):
        load_states(history, "nightly")


def test_verdicts_are_found_by_what_they_are_about(history: History) -> None:
    every = load_verdicts(history, "nightly")
    assert len(every) == 20
    assert load_verdicts(history, "weekly") == []
    one = every[6]
    assert [each.run for each in load_verdicts(history, "nightly", run=one.run)] == [one.run] * 2
    assert {each.suite_run for each in load_verdicts(history, "nightly", suite_run="night0003")} == {"night0003"}
    assert {each.key for each in load_verdicts(history, "nightly", key=one.key)} == {one.key}
    assert load_verdicts(history, "nightly", outcome="insufficient_data") == every
    assert load_verdicts(history, "nightly", outcome="same") == []
    later = load_verdicts(history, "nightly", since_ns=every[8].started_ns)
    assert later == every[8:]
    assert load_verdicts(history, "nightly", since_ns=every[8].started_ns + 1) == every[12:]
    assert judged_runs(history, "nightly", every[8].started_ns) == {each.run for each in every[8:]}
    assert judged_runs(history, "weekly", 0) == frozenset()


def test_a_night_is_stored_whole_or_not_at_all(history: History) -> None:
    known = load_states(history, "nightly")
    verdicts = load_verdicts(history, "nightly", suite_run="night0004")
    again = [msgspec.structs.replace(each, reason="again") for each in verdicts]
    save_night(history, known, known.values(), again)
    assert load_verdicts(history, "nightly", suite_run="night0004") == again  # In place of the earlier ones.
    assert {each.revision for each in load_states(history, "nightly").values()} == {
        each.revision + 1 for each in known.values()
    }
    with pytest.raises(Raced):
        save_night(history, known, known.values(), verdicts)
    assert load_verdicts(history, "nightly", suite_run="night0004") == again
    with pytest.raises(Raced):
        save_accepted(history, [], known, known.values())


def test_what_a_suite_is_judged_by_changes_with_each_verdict_and_acceptance(history: History) -> None:
    newest_ns = load_verdicts(history, "nightly")[-1].started_ns
    judged = judged_suites(history, newest_ns)
    revisions = sum(each.revision for each in load_states(history, "nightly").values())
    assert judged == {"nightly": Judged(suite_run="night0004", judged=20, revisions=revisions, accepted=0)}
    assert judged_suites(history, newest_ns - 1)["nightly"].suite_run == "night0003"
    assert judged_suites(history, newest_ns - 1)["nightly"].judged == 16
    assert judged_suites(history, 0) == {}
    known = load_states(history, "nightly")
    (first, *_) = known
    level = AcceptedLevel(key=first, level=0.1, run="run0004-ddp", who="ada", because="agreed", accepted_ns=1)
    save_accepted(history, [level], known, [known[first]])
    (after,) = judged_suites(history, newest_ns).values()
    assert (after.revisions, after.accepted) == (revisions + 1, 1)


def test_the_hardware_of_runs_is_found(history: History) -> None:
    known = hardware_of(history, ["run0001-ddp", "run0002-ddp", "nowhere"])
    assert known == dict.fromkeys(("run0001-ddp", "run0002-ddp"), "AMD EPYC, 2 cores")
