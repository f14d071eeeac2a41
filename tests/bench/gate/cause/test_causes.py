"""The cause of a change is found on its first night, kept as long as it is open, and told with what is missing."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from sqlalchemy import update

from bench.gate.accept import accept
from bench.gate.cause.likely import change_words
from bench.gate.cause.where import TraceChange, TracedChange
from bench.gate.causes import GOOD_NIGHTS, Cause, _with_further_runs, explain
from bench.gate.check import SuiteCheck, check_suite
from bench.gate.ci_formats import comment, junit_xml
from bench.gate.groups import Group
from bench.gate.nightly import judge_nights
from bench.gate.report import check_document, print_check
from bench.gate.verdicts import Verdict, load_states, load_verdicts, save_accepted
from bench.machine.machine import Machine
from bench.results.estimate import Estimate
from bench.store.history import History
from bench.store.schema import GATE_STATES, RUNS
from collectors.metrics import results
from tests.bench.made.examples import make_case, make_machine
from tests.bench.made.fake_nights import DAY_NS, FIRST_NS, STEP_S, FakeNights
from tests.bench.made.scaled import Made, made_estimates

NIGHTS = 18
"""Nights that are alike, before the first bad one."""
SLOWER = 1.08
_HAS_REPOSITORY = (Path(__file__).parents[4] / ".git").exists()  # Not in an unpacked archive of the tree.
_COUNTED = "the first is gone from the repository" if _HAS_REPOSITORY else "not counted: no repository here"
COMMITS = f"commit {'8' * 12}..{'f' * 12} ({_COUNTED})"
_OF_NIGHTS = (results.RUN_MEAN_STEP_SECONDS.name, results.RUN_TOKENS_PER_SECOND.name)


def _parts(step_s: float, exposed_s: float) -> Sequence[Estimate]:
    """What a step is made of, beside the figures that a night has already."""
    made = Made(step_s=step_s, compute_s=0.08, exposed_s=exposed_s, waiting_s=0.004, idle_s=0.006)
    return [one for one in made_estimates(make_case("ddp", 2), made) if one.metric not in _OF_NIGHTS]


GOOD_PARTS, BAD_PARTS = _parts(STEP_S, 0.010), _parts(SLOWER * STEP_S, 0.018)


def _machine(**changes: Any) -> Machine:
    return replace(make_machine(), **{"driver_version": "550.54", **changes})


@pytest.fixture(scope="module")
def good_nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of nights that are alike but for their commits, and judged."""
    path = tmp_path_factory.mktemp("nights") / "history.sqlite"
    with History(f"sqlite:///{path}") as history:
        nights = FakeNights(history)
        for number in range(NIGHTS):
            commit = f"{number // 2:x}" * 40
            trials = nights.trials(STEP_S)
            nights.add_run(number, "ddp", trials, machine=_machine(), commit=commit, parts=GOOD_PARTS)
            nights.add_record(number, done=1)
        judge_nights(history, "nightly")
    return path


@pytest.fixture
def history(good_nights: Path, tmp_path: Path) -> Iterator[History]:
    """A copy of it, open."""
    shutil.copy(good_nights, tmp_path / "history.sqlite")
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as history:
        yield history


def _add_bad(history: History, number: int, machine: Machine, *, level: float = SLOWER, **changes: Any) -> None:
    """Add a night that is slower, with its rerun."""
    nights = FakeNights(history, seed=100 + number)
    changes = {"parts": BAD_PARTS, "commit": "f" * 40, **changes}
    nights.add_run(number, "ddp", nights.trials(level * STEP_S), machine=machine, **changes)
    nights.add_run(number, "ddp", nights.trials(level * STEP_S), machine=machine, is_rerun=True, **changes)
    nights.add_record(number, done=1)


def _judged(history: History) -> Verdict:
    """The newest verdict on the step."""
    found = [one for one in judge_nights(history, "nightly") if one.key.metric == results.RUN_STEP_SECONDS.name]
    return found[-1]


def _check(history: History) -> SuiteCheck:
    now_ns = FIRST_NS + (NIGHTS + 9) * DAY_NS
    return check_suite(history, "nightly", history.suite_runs(99), since_ns=None, now_ns=now_ns)


def _explained(history: History, *, is_whole: bool = True, runs: Path = Path("/nowhere")) -> tuple[Cause, ...]:
    found = _check(history)
    return explain(history, found.verdicts, found.groups, runs, is_whole=is_whole)


def _text(check: SuiteCheck, *, width: int = 80, has_details: bool = False) -> str:
    out = io.StringIO()
    print_check([check], has_details=has_details, console=Console(file=out, width=width, force_terminal=True))
    return re.sub("\x1b\\[[0-9;]*m", "", out.getvalue())


def test_a_driver_that_changed_on_the_first_bad_night_is_the_likely_cause(history: History) -> None:
    _add_bad(history, NIGHTS, _machine(driver_version="560.28"))
    one = _judged(history)
    assert one.outcome == "regression"
    assert (one.good_run, one.bad_run) == ("run0017-ddp", "run0018-ddp")
    assert one.cause is not None
    assert one.cause.startswith("likely driver 550.54 -> 560.28 on the first bad night; exposed communication +8.")
    assert len(one.cause.removesuffix(f"; {COMMITS}")) <= 160
    (kept,) = [v for v in load_verdicts(history, "nightly", run="run0018-ddp") if v.key == one.key]
    assert kept == one


def test_the_kept_line_is_printable_whatever_a_variable_holds(history: History) -> None:
    environment = {**make_machine().environment, "NCCL_ALGO": "\x1b[31mTree\x07\n\u202e\x9b"}
    _add_bad(history, NIGHTS, _machine(environment=environment))
    one = _judged(history)
    assert one.cause is not None
    assert one.cause.isprintable()
    assert "NCCL_ALGO not set -> \\x1b[31mTree\\x07" in one.cause


def test_the_cause_stays_while_the_change_is_open_and_costs_no_second_search(history: History) -> None:
    driver = _machine(driver_version="560.28")
    _add_bad(history, NIGHTS, driver)
    first = _judged(history)
    for number in range(NIGHTS + 1, NIGHTS + 7):
        _add_bad(history, number, driver)
        later = _judged(history)
    assert later.outcome == "confirmed"
    assert not later.is_new
    assert (later.cause, later.good_run, later.bad_run) == (first.cause, first.good_run, first.bad_run)
    history.forget("run0017-ddp")  # What was found once is not looked for again.
    _add_bad(history, NIGHTS + 7, driver)
    assert _judged(history).cause == first.cause
    (blamed,) = {known.state.blame for known in load_states(history, "nightly").values()}
    assert blamed is not None
    assert blamed.cause == first.cause


def test_a_change_that_has_gone_again_has_no_cause_left(history: History) -> None:
    _add_bad(history, NIGHTS, _machine(driver_version="560.28"))
    _judged(history)
    for number in range(NIGHTS + 1, NIGHTS + 7):
        _add_bad(history, number, _machine(), level=1.0, parts=GOOD_PARTS)
        last = _judged(history)
    assert last.outcome == "same"
    assert (last.good_run, last.cause) == (None, None)
    assert {known.state.blame for known in load_states(history, "nightly").values()} == {None}


@pytest.mark.parametrize("is_pruned", [False, True])
def test_what_crept_is_held_against_the_run_of_the_accepted_level(history: History, is_pruned: bool) -> None:
    known = load_states(history, "nightly")
    now_ns = FIRST_NS + (NIGHTS - 1) * DAY_NS + DAY_NS // 4
    levels, after = accept(known.values(), case="ddp", metric=None, who="ada", because="agreed", now_ns=now_ns)
    save_accepted(history, levels, known, after)
    if is_pruned:
        history.forget("run0017-ddp")
    nights = FakeNights(history, sd_ratio=0.002, seed=5)
    for number in range(NIGHTS, NIGHTS + 60):  # Too little a night for any of them to stand out.
        machine = _machine(driver_version="550.54" if number < NIGHTS + 3 else "560.28")
        trials = nights.trials(STEP_S * 1.0008 ** (number - NIGHTS))
        nights.add_run(number, "ddp", trials, machine=machine, parts=GOOD_PARTS)
        nights.add_record(number, done=1)
        if (one := _judged(history)).outcome == "creep":
            break
    assert one.outcome == "creep"
    good = "run0016-ddp" if is_pruned else "run0017-ddp"
    assert (one.good_run, one.bad_run) == (good, f"run{number:04}-ddp")
    (cause,) = explain(history, [one], (), Path("/nowhere"), is_whole=True)
    assert "driver" in [change.topic for change in cause.changes]


def test_ten_changes_at_once_are_listed_and_none_is_blamed(history: History) -> None:
    bad = _machine(
        driver_version="560.28",
        kernel="6.2",
        torch_version="2.14.0",
        python_version="3.12.1",
        cpu="Intel Xeon",
        architecture="aarch64",
        usable_cores=4,
        environment={"OMP_NUM_THREADS": "2", "NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"},
    )
    _add_bad(history, NIGHTS, bad)
    one = _judged(history)
    assert one.cause is not None
    assert one.cause.startswith("exposed communication +8.")
    assert one.cause.endswith(f"; 10 rare changes at once, none is blamed; {COMMITS}")
    (cause,) = _explained(history)
    assert not cause.is_likely
    assert len(cause.changes) == 11
    assert cause.changes[-1].topic == "commit"
    assert cause.changes[-1].changed_on == 9
    check = replace(_check(history), causes=(cause,))
    for text in (_text(check), junit_xml([check]), comment([check])):
        words = " ".join(unescape(text).replace("\\", "").split())
        assert all(change_words(change) in words for change in cause.changes)
        assert "more (--details)" not in words.partition("changed: ")[2].partition("missing: ")[0]


def test_without_a_rare_change_the_part_that_grew_is_the_cause(history: History) -> None:
    _add_bad(history, NIGHTS, _machine())
    one = _judged(history)
    assert one.cause is not None
    assert one.cause.startswith("exposed communication +8.")
    assert one.cause.endswith(f"; 1 change, none of them rare; {COMMITS}")


def test_without_traces_the_cause_goes_as_far_as_it_can(history: History) -> None:
    _add_bad(history, NIGHTS, _machine(driver_version="560.28"), parts=())
    one = _judged(history)
    assert one.cause is not None
    assert one.cause.startswith("likely driver 550.54 -> 560.28 on the first bad night; step +")
    assert one.cause.endswith(f"of unknown parts, as no step was traced; {COMMITS}")
    (cause,) = _explained(history)
    can_act = ["trace_steps = 3" in why for why in cause.missing]
    assert cause.missing[0] == (
        "which rank stands out is unknown: no step was traced; set trace_steps = 3 in the suite"
    )
    assert "the folder of the good run is gone, and its traces with it" in cause.missing
    assert can_act == sorted(can_act, reverse=True)
    text = " ".join(_text(replace(_check(history), causes=(cause,))).split())
    assert "missing: which rank stands out is unknown" in text


def test_other_hosts_are_listed_with_the_first_node_alone(history: History) -> None:
    hosts = ("node0", "node7")
    _add_bad(history, NIGHTS, _machine(), level=2.0, hosts=hosts)  # Another placement may be somewhat slower.
    (cause,) = _explained(history)
    assert [(one.topic, one.before, one.now) for one in cause.changes] == [
        ("hosts", "none", "node7"),
        ("commit", "8" * 12, "f" * 12),
    ]
    assert cause.line.startswith("likely hosts none -> node7 on the first bad night")
    assert "machines of run0018-ddp except the first: its folder has no machine<k>.json" in cause.missing


def test_machines_of_other_nodes_are_read_from_the_folders_where_these_are(history: History, tmp_path: Path) -> None:
    hosts = ("node0", "node1")
    for name, driver in (("good", "550.54"), ("bad", "560.28")):
        (tmp_path / name).mkdir()
        machine = replace(_machine(driver_version=driver), hostname="node1")
        (tmp_path / name / "machine1.json").write_bytes(msgspec.json.encode(machine))
    (tmp_path / "bad" / "machine2.json").write_text("{")  # One that cannot be read is left out.
    nights = FakeNights(history, seed=7)
    commit = "8" * 40
    placed: dict[str, Any] = {"hosts": hosts, "commit": commit, "machine": _machine()}
    good = str(tmp_path / "good")
    nights.add_run(NIGHTS, "ddp", nights.trials(STEP_S), folder=good, parts=GOOD_PARTS, **placed)
    nights.add_record(NIGHTS, done=1)
    _add_bad(history, NIGHTS + 1, _machine(), folder=str(tmp_path / "bad"), hosts=hosts, commit=commit)
    (cause,) = _explained(history)
    (one,) = cause.changes
    assert (one.field, one.before, one.now, one.hosts) == ("driver", "550.54", "560.28", ("node1",))
    assert cause.line.startswith("exposed communication +")
    assert cause.line.endswith("; how often this changes is unknown: driver 550.54 -> 560.28 on node1")


def test_without_a_good_run_that_is_said(history: History) -> None:
    _add_bad(history, NIGHTS, _machine())
    for number in range(NIGHTS):
        history.forget(f"run{number:04}-ddp")
    one = _judged(history)
    day = "2024-10-22"
    assert (one.good_run, one.bad_run) == (None, "run0018-ddp")
    assert one.cause == f"unknown: the history has no run of the series before {day}"
    (cause,) = _explained(history)
    assert cause.missing[0] == f"what changed: the history has no run of the series before {day}"
    assert cause.commands == ("observatory diagnose run0018-ddp",)


def test_a_machine_that_cannot_be_read_leaves_hosts_and_commit(history: History) -> None:
    _add_bad(history, NIGHTS, _machine(driver_version="560.28"))
    with history.transaction() as connection:
        connection.execute(update(RUNS).where(RUNS.c.id == "run0017-ddp").values(machine_json="{"))
    (cause,) = _explained(history)
    assert [one.topic for one in cause.changes] == ["commit"]
    assert "the machine of run0017-ddp cannot be read: only hosts and commit are compared" in cause.missing


def test_a_run_that_cannot_be_read_keeps_no_night_from_being_judged(history: History) -> None:
    _add_bad(history, NIGHTS, _machine())
    with history.transaction() as connection:
        connection.execute(update(RUNS).where(RUNS.c.id == "run0017-ddp").values(summary_json='{"schema_version": 99}'))
    one = _judged(history)
    assert one.outcome == "regression"
    assert one.cause is not None
    assert one.cause.startswith("unknown: run run0017-ddp in store ")
    (cause,) = explain(history, [one], (), Path("/nowhere"), is_whole=True)
    assert cause.line == one.cause
    assert cause.commands == ("observatory diagnose run0018-ddp",)


def test_a_run_that_can_no_longer_be_read_leaves_the_line_and_the_next_command(history: History) -> None:
    _add_bad(history, NIGHTS, _machine(driver_version="560.28"))
    one = _judged(history)
    with history.transaction() as connection:
        connection.execute(update(RUNS).where(RUNS.c.id == "run0018-ddp").values(summary_json='{"schema_version": 99}'))
    (cause,) = explain(history, [one], (), Path("/nowhere"), is_whole=True)
    assert (cause.case, cause.figures, cause.line) == ("ddp", (one,), one.cause)
    assert (cause.good_run, cause.bad_run) == ("run0017-ddp", "run0018-ddp")
    assert (cause.is_likely, cause.changes, cause.time, cause.traces, cause.standout) == (False, (), None, None, None)
    assert [why.partition(" in store ")[0] for why in cause.missing] == ["run run0018-ddp"]
    assert cause.commands == ("observatory diagnose run0018-ddp",)
    (unknown,) = explain(history, [msgspec.structs.replace(one, cause=None)], (), Path("/nowhere"), is_whole=True)
    assert unknown.line.startswith("unknown: run run0018-ddp in store ")


def test_states_and_verdicts_of_an_older_version_get_their_cause_on_the_next_night(history: History) -> None:
    driver = _machine(driver_version="560.28")
    _add_bad(history, NIGHTS, driver)
    first = _judged(history)
    for number in range(NIGHTS + 1, NIGHTS + 6):
        _add_bad(history, number, driver)
        _judged(history)
    states = load_states(history, "nightly")
    with history.transaction() as connection:
        for key, known in states.items():
            fields = msgspec.json.decode(msgspec.json.encode(known.state))
            del fields["blame"]
            old = update(GATE_STATES).where(GATE_STATES.c.metric == key.metric)
            connection.execute(old.values(state_json=json.dumps(fields)))
    _add_bad(history, NIGHTS + 6, driver)
    one = _judged(history)
    assert (one.outcome, one.is_new, one.cause) == ("confirmed", False, first.cause)


# What a person and a program see


@pytest.fixture
def told(history: History) -> SuiteCheck:
    """A check with its cause."""
    _add_bad(history, NIGHTS, _machine(driver_version="560.28"))
    return replace(_check(history), causes=_explained(history))


def test_a_person_gets_the_cause_in_a_few_short_lines(told: SuiteCheck) -> None:
    text = _text(told)
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert "cause of ddp (mean step, step), run0018-ddp against run0017-ddp: likely driver 550.54 -> 560.28" in words
    assert "changed: driver 550.54 -> 560.28 (on 1 of 18 nights), commit 888888888888..ffffffffffff" in words
    assert "(2 more with --details)" in words
    assert "next: observatory compare run0017-ddp run0018-ddp; observatory diagnose run0018-ddp" in words


def test_details_have_all_parts_and_all_that_is_missing(told: SuiteCheck) -> None:
    words = " ".join(_text(told, has_details=True).split())
    assert "compute +" in words
    assert words.count("missing: ") == len(told.causes[0].missing)


@pytest.mark.parametrize(
    ("step_s", "said"),
    [
        (
            0.008,
            "traced step +8.0 ms: kernels nccl_all_reduce +7.0 ms (new); collectives all_reduce 1000 float32 +7.0 ms",
        ),
        (-0.001, "traced step -1.0 ms: the change is not in the steps that were traced"),
    ],
)
def test_traces_tell_kernels_only_where_the_traced_steps_changed_alike(
    told: SuiteCheck, step_s: float, said: str
) -> None:
    kernel = TracedChange(name="nccl_all_reduce", part="exposed_communication", seen="new", change_s=0.007)
    call = replace(kernel, name="all_reduce 1000 float32", seen="both")
    traces = TraceChange(step_s=step_s, kernels=(kernel,), collectives=(call,), notes=())
    (cause,) = told.causes
    text = _text(replace(told, causes=(replace(cause, traces=traces),)))
    assert said in " ".join(text.split())


def test_json_has_the_cause_whole(told: SuiteCheck) -> None:
    (cause,) = json.loads(json.dumps(msgspec.to_builtins(check_document(told))))["causes"]
    assert (cause["case"], cause["good_run"], cause["bad_run"]) == ("ddp", "run0017-ddp", "run0018-ddp")
    assert cause["is_likely"]
    assert {one["metric"] for one in cause["figures"]} == {
        results.RUN_STEP_SECONDS.name,
        results.RUN_MEAN_STEP_SECONDS.name,
    }
    assert cause["changes"][0] | {"began_ns": 0} == {
        "kind": "driver",
        "topic": "driver",
        "field": "driver",
        "before": "550.54",
        "now": "560.28",
        "hosts": [],
        "changed_on": 1,
        "nights": 18,
        "began_ns": 0,
        "carried_by": None,
    }
    parts = {one["name"]: one for one in cause["time"]["parts"]}
    assert parts["exposed communication"]["low_s"] > 0
    assert sum(one["change_s"] for one in parts.values()) == pytest.approx(cause["time"]["step"]["change_s"])


def test_cases_of_a_group_are_told_with_its_first_one(history: History) -> None:
    verdicts = load_verdicts(history, "nightly", run="run0017-ddp")
    assert explain(history, verdicts, (), Path("/nowhere"), is_whole=False) == ()  # Nothing is worse.
    _add_bad(history, NIGHTS, _machine(driver_version="560.28"))
    check = _check(history)
    other = [
        msgspec.structs.replace(one, key=msgspec.structs.replace(one.key, case="fsdp"), change_ratio=1.01)
        for one in check.verdicts
    ]
    alerts = (*check.verdicts, *other)
    both = Group(shared=("host", "node0"), alerts=alerts, others=3, p_value=0.001)
    (first,) = explain(history, alerts, [both], Path("/nowhere"), is_whole=False)
    assert (first.case, first.others) == ("ddp", ("fsdp",))
    assert len(explain(history, alerts, [both], Path("/nowhere"), is_whole=True)) == 2


def test_the_nights_before_a_change_count_once_each(history: History) -> None:
    key = next(key for key in load_states(history, "nightly") if key.metric == results.RUN_MEAN_STEP_SECONDS.name)
    good, bad = history.find("run0010-ddp"), history.find("run0011-ddp")
    before, after = _with_further_runs(history, key, good, bad)
    assert [run.run for run in before] == [f"run{10 - ago:04}-ddp" for ago in range(GOOD_NIGHTS)]
    assert [run.run for run in after] == [bad.run]
