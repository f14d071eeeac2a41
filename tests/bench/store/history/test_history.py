"""What is kept comes back, from SQLite and PostgreSQL alike."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from bench.case import ONE_RUN, Purpose, SuiteMember
from bench.errors import Misuse
from bench.machine.fingerprint import fingerprint
from bench.store.database import connect, parse_url
from bench.store.history import History
from bench.store.schema import ESTIMATES, RUNS, TRIAL_VALUES
from bench.store.suite_record import SuiteRecord
from bench.store.summary import series_of
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.examples import make_case, make_machine, make_summary


def test_a_run_comes_back_as_it_was(store_url: str) -> None:
    summary, machine = make_summary(), make_machine()
    with History(store_url) as history:
        history.add(summary, machine)
    with History(store_url, writable=False) as history:
        assert history.find(summary.run) == summary
        assert history.machine(summary.run) == machine


def test_estimates_and_trials_are_rows_for_whoever_plots_them(store_url: str) -> None:
    summary = make_summary()
    with History(store_url) as history:
        history.add(summary, make_machine())
    engine = connect(parse_url(store_url), writable=False)
    with engine.begin() as connection:
        medians = connection.execute(select(ESTIMATES.c.metric, ESTIMATES.c.labels, ESTIMATES.c.median)).all()
        values = connection.execute(
            select(TRIAL_VALUES.c.value)
            .where(TRIAL_VALUES.c.metric == "observatory_run_step_seconds")
            .order_by(TRIAL_VALUES.c.trial)
        ).scalars()
        assert list(values) == [0.010, 0.011, 0.012]
    engine.dispose()
    assert sorted(tuple(row) for row in medians) == [
        ("observatory_run_phase_seconds", '{"phase":"forward"}', 0.004),
        ("observatory_run_step_seconds", "{}", 0.011),
    ]


def test_adding_a_run_again_replaces_it_whole(store_url: str) -> None:
    first = make_summary()
    again = make_summary(outcome="failed", estimates=first.estimates[:1])
    with History(store_url) as history:
        history.add(first, make_machine())
        history.add(again, make_machine())
        assert history.runs(limit=10) == (again,)
    engine = connect(parse_url(store_url), writable=False)
    with engine.begin() as connection:
        assert len(connection.execute(select(ESTIMATES.c.run)).all()) == 1
        assert len(connection.execute(select(TRIAL_VALUES.c.run)).all()) == 3
    engine.dispose()


def test_a_run_is_forgotten_with_all_that_was_kept_of_it(store_url: str) -> None:
    with History(store_url) as history:
        for name in ("a", "b"):
            history.add(make_summary(name), make_machine())
        history.forget("a")
        history.forget("never there")
        assert history.known() == {"b"}
    engine = connect(parse_url(store_url), writable=False)
    with engine.begin() as connection:
        for table in (ESTIMATES, TRIAL_VALUES):
            assert set(connection.execute(select(table.c.run)).scalars()) == {"b"}
    engine.dispose()


def test_runs_are_newest_first_and_no_more_than_asked_for(store_url: str) -> None:
    with History(store_url) as history:
        for number in (2, 3, 1):
            history.add(make_summary(f"run-{number}", started_ns=number), make_machine())
        assert [summary.run for summary in history.runs(limit=2)] == ["run-3", "run-2"]


def test_runs_of_one_strategy(store_url: str) -> None:
    single = make_summary("run-s", case=make_case("single", ranks=1))
    with History(store_url) as history:
        history.add(make_summary("run-d"), make_machine())
        history.add(single, make_machine())
        assert history.runs(limit=10, strategy="single") == (single,)


def test_a_run_is_found_by_the_beginning_of_its_id(store_url: str) -> None:
    with History(store_url) as history:
        for name in ("20260101-ddp-aa", "20260102-ddp-bb"):
            history.add(make_summary(name), make_machine())
        assert history.find("20260102").run == "20260102-ddp-bb"


def test_a_whole_id_is_found_although_others_begin_so(store_url: str) -> None:
    with History(store_url) as history:
        for name in ("a", "ab"):
            history.add(make_summary(name), make_machine())
        assert history.find("a").run == "a"


def test_an_ambiguous_beginning_is_refused_with_the_candidates(store_url: str) -> None:
    with History(store_url) as history:
        for number in range(8):
            history.add(make_summary(f"run-{number}", started_ns=number), make_machine())
        with pytest.raises(Misuse, match=r'run "run-" may be any of run-7, .*, run-2, \.\.\.; give more of its name'):
            history.find("run-")


@pytest.mark.parametrize("prefix", ["x", "RUN", "run_", "%", ""])
def test_an_unknown_run_is_refused_with_the_newest(store_url: str, prefix: str) -> None:
    with History(store_url) as history:
        history.add(make_summary("run-a"), make_machine())
        with pytest.raises(Misuse, match=f'run "{prefix}" is unknown; the newest in the history are: run-a'):
            history.find(prefix)


def test_known_runs(store_url: str) -> None:
    with History(store_url) as history:
        assert history.known() == frozenset()
        for name in ("a", "b"):
            history.add(make_summary(name), make_machine())
        assert history.known(["b", "c"]) == {"b"}
        assert history.known() == {"a", "b"}


def test_runs_are_counted_by_strategy_and_outcome_without_being_read(store_url: str) -> None:
    with History(store_url) as history:
        assert (history.outcomes(), history.extent()) == ({}, (0, None))
        for number, (strategy, outcome) in enumerate((("ddp", "done"), ("fsdp", "done"), ("ddp", "done"))):
            summary = make_summary(f"r{number}", started_ns=10 + number, case=make_case(strategy), outcome=outcome)
            history.add(summary, make_machine())
        history.add(make_summary("r9", started_ns=5, case=make_case("ddp"), outcome="failed"), make_machine())
        assert history.outcomes() == {("ddp", "done"): 2, ("fsdp", "done"): 1, ("ddp", "failed"): 1}
        assert history.extent() == (4, 12)


def test_baselines_are_the_good_runs_of_this_key_on_this_hardware_newest_first(store_url: str) -> None:
    key, hardware = make_case().key(), make_summary().hardware
    with History(store_url) as history:
        assert history.baselines(key, hardware, limit=9) == ()
        for name, started_ns, changes in (
            ("old", 1, {}),
            ("good", 2, {}),
            ("failed", 3, {"outcome": "failed"}),
            ("elsewhere", 4, {"hardware": "2 x NVIDIA H200"}),
            ("other", 5, {"case": make_case(ranks=4)}),
        ):
            history.add(make_summary(name, started_ns=started_ns, **changes), make_machine())
        found = history.baselines(key, hardware, limit=9)
        newest = history.baselines(key, hardware, limit=1)
    assert [one.run for one in found] == ["good", "old"]
    assert newest == found[:1]


def test_more_trials_or_another_seed_have_the_same_baselines(store_url: str) -> None:
    with History(store_url) as history:
        history.add(make_summary(), make_machine())
        other = make_case(trials=9, steps=99, warm_up=0, seed=5)
        assert history.baselines(other.key(), make_summary().hardware, limit=9) == (make_summary(),)


def test_readers_go_on_while_somebody_writes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with History(url) as writer, History(url, writable=False) as reader:
        writer.add(make_summary("a"), make_machine())
        engine = connect(parse_url(url), writable=True)
        with engine.begin():  # Holds the lock of the one writer.
            assert reader.known() == {"a"}
        engine.dispose()


def test_who_reads_beside_a_writer_sees_what_it_wrote_and_the_last_leaves_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with History(url) as writer:
        writer.add(make_summary("run-a"), make_machine())
        with History(url, writable=False) as first, History(url, writable=False, is_glance=True) as glance:
            assert first.known() == glance.known() == {"run-a"}
        writer.add(make_summary("run-b"), make_machine())
        last = History(url, writable=False)
        assert last.known() == {"run-a", "run-b"}
    assert last.known() == {"run-a", "run-b"}
    last.close()
    assert [path.name for path in tmp_path.iterdir()] == ["history.sqlite"]


def _member(case: str, *, run: str = "night-1", suite: str = "nightly") -> Purpose:
    return Purpose(member=SuiteMember(suite=suite, id=run, case=case))


def test_runs_of_a_suite_are_found_by_the_suite_and_by_its_run(store_url: str) -> None:
    with History(store_url) as history:
        for name, purpose in (
            ("a", _member("ddp")),
            ("b", _member("fsdp")),
            ("c", _member("ddp", run="night-2")),
            ("d", _member("ddp", run="smoke-1", suite="smoke")),
            ("e", ONE_RUN),
        ):
            history.add(make_summary(name, purpose=purpose), make_machine())
        assert {found.run for found in history.runs(9, suite="nightly")} == {"a", "b", "c"}
        assert {found.run for found in history.runs(9, suite_run="night-1")} == {"a", "b"}
        assert {found.run for found in history.runs(9)} == {"a", "b", "c", "d", "e"}


def _record(name: str, started_ns: int, **fields: Any) -> SuiteRecord:
    return SuiteRecord(
        id=name, suite="nightly", started_ns=started_ns, progress_ns=started_ns, total=2, folder="/runs", **fields
    )


def test_a_suite_run_is_kept_once_with_its_newest_record(store_url: str) -> None:
    with History(store_url) as history:
        history.save_suite(_record("night-1", 1, running=("ddp",)))
        ended = _record("night-1", 1, ended_ns=5, outcome="failed", cases={"done": 1, "failed": 1})
        history.save_suite(ended)
        assert history.suite_runs(9) == (ended,)


def test_the_newest_suite_runs_come_first_and_others_than_the_suite_s_are_left_out(store_url: str) -> None:
    with History(store_url) as history:
        for name, started_ns in (("one", 1), ("three", 3), ("two", 2)):
            history.save_suite(_record(name, started_ns))
        assert [record.id for record in history.suite_runs(2)] == ["three", "two"]
        assert history.suite_runs(9, "smoke") == ()


def test_a_trial_is_kept_with_its_spread_its_steps_and_where_it_ran(store_url: str) -> None:
    member = SuiteMember(suite="nightly", id="n1", case="ddp", is_rerun=True)
    summary = make_summary(
        commit="c" * 40,
        step_spreads=(0.1, 0.2, 0.3),
        hosts=("a", "b"),
        purpose=Purpose(origin="nightly", member=member),
    )
    with History(store_url) as history:
        history.add(summary, make_machine())
        with history.transaction() as connection:
            run = connection.execute(select(RUNS)).one()
            trials = connection.execute(select(TRIAL_VALUES).order_by(TRIAL_VALUES.c.trial)).all()
    assert (run.series, run.definition_version) == (series_of(summary.case, summary.hardware), summary.case.version)
    assert (run.commit_id, run.hosts, run.is_rerun) == ("c" * 40, "a b", 1)
    assert run.environment == fingerprint(make_machine())
    of_steps = [trial for trial in trials if trial.metric == RUN_STEP_SECONDS.name]
    assert [(one.value, one.spread_ratio, one.steps) for one in of_steps] == [
        (0.010, 0.1, 10),
        (0.011, 0.2, 10),
        (0.012, 0.3, 10),
    ]
    assert {one.spread_ratio for one in trials if one.metric != RUN_STEP_SECONDS.name} == {None}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_refused(store_url: str, value: float) -> None:
    step = replace(make_summary().estimates[0], trials=(0.01, value, 0.01))
    with History(store_url) as history:
        with pytest.raises(Misuse, match=r"run run-a: observatory_run_step_seconds is not finite in every trial"):
            history.add(make_summary(estimates=(step,)), make_machine())
        assert history.names(1) == ()
