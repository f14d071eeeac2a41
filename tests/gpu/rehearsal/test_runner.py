"""Running checks: time limits, results that stay, what a second call skips, and the budget of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.gpu import processes
from tests.gpu.check import Check, Finding, NotHere, figure, within
from tests.gpu.commands import OwnCommands
from tests.gpu.runner import (
    Result,
    Setting,
    current_result,
    judge,
    log_path,
    perform,
    result_of,
    run_all,
    run_one,
    verdict_of,
    why_not,
)
from tests.gpu.session import Program, Session

LIMIT_S = 3.0
_FINDING = figure("first", 1.0)


def _nothing(session: Session) -> Iterator[Finding]:
    yield _FINDING


@pytest.fixture(autouse=True)
def _orphans_go_where_they_went() -> Iterator[None]:
    """Other tests of this process look for what their own programs leave behind."""
    yield
    assert processes.adopt_orphans(is_adopting=False)


def _a_check(name: str = "one", run: Callable[[Session], Iterator[Finding]] = _nothing, **changes: object) -> Check:
    return Check(name=name, run=run, tells="", expected="", **changes)  # type: ignore[arg-type]


def _a_setting(output: Path, **changes: object) -> Setting:
    known: dict[str, object] = {"device": "cuda", "gpus": 1, "commit": "abc", "budget_s": 100.0, **changes}
    return Setting(output=output, **known)  # type: ignore[arg-type]


def _python(text: str) -> Callable[[Check, Setting], Sequence[str]]:
    """Commands that run this text, to which OUTPUT and NAME are known."""
    return lambda check, setting: [
        sys.executable,
        "-c",
        f"OUTPUT, NAME = {str(setting.output)!r}, {check.name!r}\n{text}",
    ]


def _quiet(_: str) -> None: ...


_SLEEPER = """
import os, sys, time
os.setsid()
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""
_MIDDLE = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1], "orphan"])
"""
_ESCAPING = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {_SLEEPER!r}, "child"])
subprocess.Popen([sys.executable, "-c", {_MIDDLE!r}, {_SLEEPER!r}]).wait()
while not (os.path.exists("child") and os.path.exists("orphan")):
    time.sleep(0.01)
"""
"""Leaves a child and an orphan, each the leader of a session of its own."""


def _pid(path: Path) -> int:
    return int(path.read_text() or "0")


def test_a_check_that_sleeps_is_ended_with_its_children_of_other_sessions_and_its_orphans(tmp_path: Path) -> None:
    result = run_one(_a_check(limit_s=LIMIT_S), _a_setting(tmp_path), _python(_ESCAPING + "time.sleep(600)"))
    assert (result.verdict, result.reason) == ("timed out", f"it was not done after {LIMIT_S:g} s")
    for name in ("child", "orphan"):
        assert not psutil.pid_exists(_pid(tmp_path / name))


def test_a_check_that_ends_leaves_no_process_either(tmp_path: Path) -> None:
    result = run_one(_a_check(limit_s=60.0), _a_setting(tmp_path), _python(_ESCAPING))
    assert (result.verdict, result.reason) == ("failed", "its process ended with code 0 and no result")
    assert not psutil.pid_exists(_pid(tmp_path / "orphan"))


def test_processes_that_were_there_before_are_left_alone(tmp_path: Path) -> None:
    before = processes.descendants()
    with (tmp_path / "log").open("wb") as log:
        words = [sys.executable, "-c", "import time; time.sleep(600)"]
        other = processes.start(words, folder=tmp_path, environment={}, out=log, err=log)
        run_one(_a_check(limit_s=LIMIT_S), _a_setting(tmp_path), _python("pass"))
        assert other.poll() is None
        assert processes.end(other, before) == []


def test_findings_made_before_the_limit_are_kept(tmp_path: Path) -> None:
    kept = msgspec.json.encode([_FINDING]).decode()
    text = f"import pathlib, time\npathlib.Path(OUTPUT, NAME + '.findings').write_text({kept!r})\ntime.sleep(600)"
    result = run_one(_a_check(limit_s=LIMIT_S), _a_setting(tmp_path), _python(text))
    assert (result.verdict, result.findings) == ("timed out", (_FINDING,))


def test_what_a_check_prints_is_in_a_log_of_its_own(tmp_path: Path) -> None:
    run_one(_a_check("talks"), _a_setting(tmp_path), _python("print('said'); import sys; sys.exit(5)"))
    assert log_path(tmp_path, "talks").read_text() == "said\n"
    result = result_of(tmp_path, "talks")
    assert result is not None
    assert result.reason == "its process ended with code 5 and no result"


def _breaks(session: Session) -> Iterator[Finding]:
    yield _FINDING
    raise OSError("the disk is gone")


def _is_not_here(session: Session) -> Iterator[Finding]:
    raise NotHere("there is no nvidia-smi here")
    yield


def test_an_error_is_the_result_and_keeps_what_was_found(tmp_path: Path) -> None:
    result = perform(_a_check(run=_breaks), _a_setting(tmp_path), say=_quiet)
    assert (result.verdict, result.reason, result.findings) == ("failed", "OSError: the disk is gone", (_FINDING,))
    assert result_of(tmp_path, "one") == result


def test_a_check_that_cannot_be_made_is_skipped_with_its_reason(tmp_path: Path) -> None:
    result = perform(_a_check(run=_is_not_here), _a_setting(tmp_path), say=_quiet)
    assert (result.verdict, result.reason) == ("skipped", "there is no nvidia-smi here")


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((), "failed"), ((None,), "seen"), ((1, None), "ok"), ((1, 3, None), "off"), ((3,), "off")],
)
def test_the_worst_finding_is_the_verdict(values: tuple[float | None, ...], verdict: str) -> None:
    found = [figure("a", 1.0) if value is None else within("a", value, high=2, source="s") for value in values]
    assert verdict_of(found) == verdict


@pytest.mark.parametrize(
    ("changes", "setting", "reason"),
    [
        ({}, {}, None),
        ({"gpus": 2}, {}, "it needs 2 GPUs and 1 can be seen"),
        ({"gpus": 2}, {"gpus": 8}, None),
        ({"library": "no_such_library"}, {}, "no_such_library is not installed"),
        ({"is_rehearsed": False}, {"device": "cpu"}, "it cannot be rehearsed on a CPU"),
        ({"gpus": 8}, {"device": "cpu"}, None),
    ],
)
def test_what_is_missing_is_the_reason_to_skip(
    changes: dict[str, Any], setting: dict[str, Any], reason: str | None, tmp_path: Path
) -> None:
    assert why_not(_a_check(**changes), _a_setting(tmp_path, **setting)) == reason


_DONE = """
import json, pathlib, sys
path = pathlib.Path(OUTPUT, NAME + ".json")
known = {"verdict": "ok", "reason": "", "findings": [], "elapsed_s": 1.0, "started_ns": 1, "commit": "abc"}
path.write_text(json.dumps({"name": NAME, "is_rehearsal": False, **known}))
with open(pathlib.Path(OUTPUT, "order"), "a") as order:
    order.write(NAME + " ")
"""


def _order(output: Path) -> list[str]:
    return (output / "order").read_text().split()


def test_a_second_call_runs_only_what_has_no_result(tmp_path: Path) -> None:
    checks, setting = [_a_check("one"), _a_check("two")], _a_setting(tmp_path)
    run_all(checks[:1], setting, say=_quiet, command_of=_python(_DONE))
    assert run_all(checks, setting, say=_quiet, command_of=_python(_DONE)) == []
    assert _order(tmp_path) == ["one", "two"]


@pytest.mark.parametrize(
    "changes", [{"commit": "def"}, {"device": "cpu"}, {"commit": None}], ids=["commit", "device", "no commit"]
)
def test_a_result_of_another_tree_or_of_a_rehearsal_is_none_here(changes: dict[str, object], tmp_path: Path) -> None:
    check = _a_check("one")
    run_all([check], _a_setting(tmp_path), say=_quiet, command_of=_python(_DONE))
    assert current_result(check, _a_setting(tmp_path)) is not None
    assert current_result(check, _a_setting(tmp_path, **changes)) is None


def test_what_was_skipped_for_want_of_gpus_is_run_where_there_are_more(tmp_path: Path) -> None:
    check = _a_check("one", gpus=2)
    run_all([check], _a_setting(tmp_path), say=_quiet, command_of=_python(_DONE))
    kept = current_result(check, _a_setting(tmp_path))
    assert kept is not None
    assert kept.verdict == "skipped"
    run_all([check], _a_setting(tmp_path, gpus=2), say=_quiet, command_of=_python(_DONE))
    assert _order(tmp_path) == ["one"]


def test_a_check_is_repeated_where_that_is_asked_for(tmp_path: Path) -> None:
    checks, setting = [_a_check("one"), _a_check("two")], _a_setting(tmp_path)
    for again in (frozenset[str](), frozenset({"two"})):
        run_all(checks, setting, say=_quiet, again=again, command_of=_python(_DONE))
    assert _order(tmp_path) == ["one", "two", "two"]


def test_a_failure_ends_nothing(tmp_path: Path) -> None:
    def command(check: Check, setting: Setting) -> Sequence[str]:
        return _python("raise SystemExit(9)" if check.name == "one" else _DONE)(check, setting)

    run_all([_a_check("one"), _a_check("two")], _a_setting(tmp_path), say=_quiet, command_of=command)
    verdicts = [found.verdict for name in ("one", "two") if (found := result_of(tmp_path, name)) is not None]
    assert verdicts == ["failed", "ok"]


def test_no_check_begins_that_would_not_fit_and_later_ones_that_fit_do(tmp_path: Path) -> None:
    checks = [_a_check("long", limit_s=90.0), _a_check("longer", limit_s=300.0), _a_check("short", limit_s=10.0)]
    moments = iter([0.0, 0.0, 80.0, 80.0])
    left = run_all(checks, _a_setting(tmp_path), say=_quiet, clock=lambda: next(moments), command_of=_python(_DONE))
    assert left == ["longer"]
    assert _order(tmp_path) == ["long", "short"]


def test_a_broken_result_is_none_and_the_check_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"name": "one"')
    assert result_of(tmp_path, "one") is None
    run_all([_a_check("one")], _a_setting(tmp_path), say=_quiet, command_of=_python(_DONE))
    assert _order(tmp_path) == ["one"]


def test_a_later_check_reads_the_values_of_an_earlier_one(tmp_path: Path) -> None:
    def first(session: Session) -> Iterator[Finding]:
        yield figure("step", 12.5, key="step_ms")

    def second(session: Session) -> Iterator[Finding]:
        yield figure("seen", session.earlier("first")["step_ms"])
        yield figure("nothing of others", len(session.earlier("third")))

    setting = _a_setting(tmp_path)
    perform(_a_check("first", first), setting, say=_quiet)
    result = perform(_a_check("second", second), setting, say=_quiet)
    assert [one.value for one in result.findings] == [12.5, 0]


def test_findings_are_on_the_disk_as_soon_as_they_are_made(tmp_path: Path) -> None:
    seen = []

    def two(session: Session) -> Iterator[Finding]:
        yield _FINDING
        seen.append((tmp_path / "one.findings").exists())
        yield _FINDING

    result: Result = judge(_a_check(run=two), _session(tmp_path), _a_setting(tmp_path), say=_quiet)
    assert (seen, len(result.findings)) == ([True], 2)


def _session(folder: Path) -> Session:
    return Session(folder=folder, device="cuda", gpus=1, commands=OwnCommands(folder, _quiet), earlier=lambda name: {})


def test_programs_that_run_at_the_same_time_have_each_its_own_time_and_output(tmp_path: Path) -> None:
    commands = OwnCommands(tmp_path, _quiet)
    long, short = commands.run(
        Program((sys.executable, "-c", "import time; time.sleep(1.5); print('long')")),
        Program((sys.executable, "-c", "import sys; print('short'); sys.exit(7)")),
    )
    assert (long.out, short.out, short.code) == ("long\n", "short\n", 7)
    assert short.elapsed_s < long.elapsed_s


def test_a_program_that_is_not_there_has_a_code_of_its_own(tmp_path: Path) -> None:
    (done,) = OwnCommands(tmp_path, _quiet).run(Program(("no-such-program",)))
    assert (done.code, "no-such-program" in done.err) == (127, True)


def test_orphans_come_to_this_process() -> None:
    assert processes.adopt_orphans()
