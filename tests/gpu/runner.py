"""Runs checks one after another within a budget, each in a process of its own, and keeps a file of each result.

One failure ends nothing. What has a result is not run again, so that a second call goes on where the first stopped.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.gpu import processes
from tests.gpu.check import Check, Finding, NotHere, Verdict
from tests.gpu.commands import OwnCommands
from tests.gpu.session import ROOT, Session
from workloads.spec import Device

SCHEMA_VERSION = 1
SPARE_S = 3.0
"""Beside a check's limit: to start its process and to end what it leaves."""
REHEARSED_LIMITS = 6.0
"""Times the limit of a check in a rehearsal: a laptop has few cores, and they are busy."""
_LOOK_S = 0.1


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one check; the content of NAME.json.

    reason: why it was skipped, failed or timed out; "" otherwise. commit: of the tree that made it, where known.
    is_rehearsal: on a CPU, where figures mean nothing.
    """

    name: str
    verdict: Verdict
    reason: str
    findings: tuple[Finding, ...]
    elapsed_s: float
    started_ns: int
    commit: str | None
    is_rehearsal: bool
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How the checks are run.

    output: folder of results and logs. gpus: that can be seen. budget_s: for this call.
    """

    output: Path
    device: Device
    gpus: int
    commit: str | None
    budget_s: float


CommandOf = Callable[[Check, Setting], Sequence[str]]


def run_all(
    checks: Iterable[Check],
    setting: Setting,
    *,
    say: Callable[[str], None],
    again: frozenset[str] = frozenset(),
    clock: Callable[[], float] = time.monotonic,
    command_of: CommandOf | None = None,
) -> list[str]:
    """Run what has no result yet and fits; the names of those that are left for another call.

    again: checks that are run though they have a result. command_of: see `run_one`.
    """
    setting.output.mkdir(parents=True, exist_ok=True)
    until = clock() + setting.budget_s
    left = []
    for check in checks:
        if check.name not in again and current_result(check, setting) is not None:
            say(f"{check.name}: has its result; --again {check.name} repeats it")
            continue
        reason = why_not(check, setting)
        if reason is not None:
            _keep(setting, _result(check, setting, "skipped", reason, (), 0.0))
            say(f"{check.name}: skipped: {reason}")
        elif until - clock() < limit_s_of(check, setting) + SPARE_S:
            left.append(check.name)
        else:
            say(f"{check.name}: at most {limit_s_of(check, setting):g} s ...")
            result = run_one(check, setting, command_of or own_command)
            say(f"{check.name}: {result.verdict} after {result.elapsed_s:.1f} s{_because(result)}")
    return left


def why_not(check: Check, setting: Setting) -> str | None:
    """Why the check is skipped here; None where it can be run."""
    if setting.device == "cpu" and not check.is_rehearsed:
        return "it cannot be rehearsed on a CPU"
    if setting.device == "cuda" and setting.gpus < check.gpus:
        return f"it needs {check.gpus} GPUs and {setting.gpus} can be seen"
    if check.library is not None and importlib.util.find_spec(check.library) is None:
        return f"{check.library} is not installed"
    return None


def limit_s_of(check: Check, setting: Setting) -> float:
    """How long the check may take here."""
    return check.limit_s * (REHEARSED_LIMITS if setting.device == "cpu" else 1.0)


def own_command(check: Check, setting: Setting) -> list[str]:
    """The command line of the process that calls `perform`."""
    words = ["--one", check.name, "--output", str(setting.output), "--gpus", str(setting.gpus)]
    words += ["--rehearse"] if setting.device == "cpu" else []
    words += [] if setting.commit is None else ["--commit", setting.commit]
    return [sys.executable, "-P", "-m", "tests.gpu.first", *words]


def run_one(check: Check, setting: Setting, command_of: CommandOf = own_command) -> Result:
    """Run one check in a process of its own; at its limit all that came of it is ended, and its findings are kept.

    command_of: gives the process's command line; it keeps the check's result itself.
    """
    limit_s = limit_s_of(check, setting)
    started_ns, begun_s = time.time_ns(), time.monotonic()
    for path in (_path(setting.output, check.name), _findings_path(setting.output, check.name)):
        path.unlink(missing_ok=True)
    processes.adopt_orphans()
    before = processes.descendants()
    with log_path(setting.output, check.name).open("wb") as log:
        process = processes.start(
            command_of(check, setting),
            folder=setting.output,
            environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            out=log,
            err=log,
        )
        try:
            while process.poll() is None and time.monotonic() - begun_s < limit_s:
                time.sleep(_LOOK_S)
            code = process.poll()
        finally:  # Also where a person has enough.
            left = processes.end(process, before)
    result = result_of(setting.output, check.name)
    elapsed_s = time.monotonic() - begun_s
    if result is None:
        findings = _findings(setting.output, check.name)
        if code is None:
            verdict, reason = "timed out", f"it was not done after {limit_s:g} s"
        else:
            verdict, reason = "failed", f"its process ended with code {code} and no result"
        result = _result(check, setting, verdict, reason, findings, elapsed_s, started_ns)  # type: ignore[arg-type]
    if left:
        reason = f"{result.reason}; " if result.reason else ""
        result = msgspec.structs.replace(result, reason=f"{reason}cannot be ended: {', '.join(left)}")
    _keep(setting, result)
    _findings_path(setting.output, check.name).unlink(missing_ok=True)
    return result


def perform(check: Check, setting: Setting, *, say: Callable[[str], None]) -> Result:
    """Run the check's function in this process and keep its result; each finding is kept as soon as it is made."""
    folder = setting.output / "work" / check.name
    folder.mkdir(parents=True, exist_ok=True)
    session = Session(
        folder=folder,
        device=setting.device,
        gpus=setting.gpus,
        commands=OwnCommands(folder, say),
        earlier=lambda name: earlier(setting.output, name),
    )
    result = judge(check, session, setting, say=say)
    _keep(setting, result)
    return result


def judge(check: Check, session: Session, setting: Setting, *, say: Callable[[str], None]) -> Result:
    """What the check's function finds; its error is its result."""
    started_ns, begun_s = time.time_ns(), time.monotonic()
    findings: list[Finding] = []
    verdict: Verdict
    reason = ""
    try:
        for finding in check.run(session):
            findings.append(finding)
            say(f"{finding.verdict}: {finding.what}: {finding.seen} (expected: {finding.expected or '-'})")
            _write(_findings_path(setting.output, check.name), msgspec.json.encode(findings))
        verdict = verdict_of(findings)
    except NotHere as error:
        verdict, reason = "skipped", str(error)
    except Exception as error:  # noqa: BLE001  # Whatever it was, the result shall say so, and the next check runs.
        say(traceback.format_exc())
        verdict, reason = "failed", f"{type(error).__name__}: {error}"
    return _result(check, setting, verdict, reason, tuple(findings), time.monotonic() - begun_s, started_ns)


def verdict_of(findings: Sequence[Finding]) -> Verdict:
    """The worst of them: off, then ok; `seen` where no finding has a bound; failed where nothing was found."""
    verdicts = {finding.verdict for finding in findings}
    if "off" in verdicts:
        return "off"
    if "ok" in verdicts:
        return "ok"
    return "seen" if verdicts else "failed"


def result_of(output: Path, name: str) -> Result | None:
    """The result that is kept of a check; None where there is none that can be read."""
    try:
        return msgspec.json.decode(_path(output, name).read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError):
        return None


def current_result(check: Check, setting: Setting) -> Result | None:
    """The result that is kept, where the check would give it here; None for one of another tree or machine."""
    kept = result_of(setting.output, check.name)
    if kept is None or (kept.commit, kept.is_rehearsal) != (setting.commit, setting.device == "cpu"):
        return None
    # One that was skipped before it began may have become possible.
    was_not_begun = kept.verdict == "skipped" and not kept.elapsed_s
    return None if was_not_begun and why_not(check, setting) != kept.reason else kept


def earlier(output: Path, name: str) -> Mapping[str, float]:
    """The values that a check found, by their keys."""
    result = result_of(output, name)
    found = () if result is None else result.findings
    return {one.key: one.value for one in found if one.key is not None and one.value is not None}


def log_path(output: Path, name: str) -> Path:
    """Where a check's log stands."""
    return output / f"{name}.log"


def _result(
    check: Check,
    setting: Setting,
    verdict: Verdict,
    reason: str,
    findings: tuple[Finding, ...],
    elapsed_s: float,
    started_ns: int | None = None,
) -> Result:
    return Result(
        name=check.name,
        verdict=verdict,
        reason=reason,
        findings=findings,
        elapsed_s=elapsed_s,
        started_ns=time.time_ns() if started_ns is None else started_ns,
        commit=setting.commit,
        is_rehearsal=setting.device == "cpu",
    )


def _because(result: Result) -> str:
    return f": {result.reason}" if result.reason else ""


def _keep(setting: Setting, result: Result) -> None:
    _write(_path(setting.output, result.name), msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def _findings(output: Path, name: str) -> tuple[Finding, ...]:
    try:
        return msgspec.json.decode(_findings_path(output, name).read_bytes(), type=tuple[Finding, ...])
    except (OSError, msgspec.DecodeError):
        return ()


def _path(output: Path, name: str) -> Path:
    return output / f"{name}.json"


def _findings_path(output: Path, name: str) -> Path:
    return output / f"{name}.findings"


def _write(path: Path, data: bytes) -> None:
    """Replace the file only by a whole one."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    part.replace(path)
