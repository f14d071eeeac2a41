"""A pytest plugin that keeps a result of each check, goes on where an earlier call ended, and writes a table.

    python -m pytest -p tests.gpu.results --output FOLDER --budget 540 [--rehearse] tests/gpu

A check that has a result of this commit is left out, and so is a check that would not fit into the budget.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import pytest

from bench.machine.machine import Machine, own_build
from bench.machine.machine import read as read_machine
from tests.gpu.session import Finding, Session
from tests.gpu.start import REHEARSED_LIMITS, SPARE_S
from workloads.spec import Device

Verdict = Literal["off", "failed", "timed out", "ok", "seen", "skipped"]
BAD = ("off", "failed", "timed out")
SCHEMA_VERSION = 1
REHEARSAL = "A rehearsal on a CPU: no figure here is of a GPU, and no verdict says anything of a GPU."


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one check; the content of NAME.json.

    reason: why it was skipped, failed or timed out; "" otherwise. commit: of the tree that made it, where known.
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


@dataclass(slots=True, kw_only=True)
class Run:
    """One call. checks: what each check tells, by name, in order. chosen: the names that this call asks for."""

    output: Path
    device: Device
    commit: str | None
    until_s: float
    checks: dict[str, str] = field(default_factory=dict)
    chosen: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def work_folder(self, name: str) -> Path:
        """Make the folder of a check's files."""
        folder = self.output / "work" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def result(self, name: str) -> Result | None:
        """Return the result of a check, where this commit made it on this kind of device."""
        try:
            result = msgspec.json.decode((self.output / f"{name}.json").read_bytes(), type=Result)
        except (OSError, msgspec.DecodeError):
            return None
        return result if (result.commit, result.is_rehearsal) == (self.commit, self.device == "cpu") else None

    def is_done(self, name: str) -> bool:
        """Return whether the check need not run. What was skipped may have become possible."""
        result = self.result(name)
        return result is not None and result.verdict != "skipped"

    def values(self, name: str) -> Mapping[str, float]:
        """Return the values that a check kept, by their keys."""
        result = self.result(name)
        rows = () if result is None else result.findings
        return {row.key: row.value for row in rows if row.key is not None and row.value is not None}

    def counted(self) -> str:
        """Return how many checks have which verdict, the worst first."""
        counts = Counter(result.verdict for name in self.checks if (result := self.result(name)) is not None)
        parts = [f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict) if counts[verdict]]
        return f"{len(self.checks)} checks: {', '.join(parts)}; {len(self.checks) - counts.total()} not run"


RUN = pytest.StashKey[Run]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the words of `make gpu`."""
    group = parser.getgroup("checks of a GPU machine")
    group.addoption("--output", type=Path, default=Path("gpu-results"), help="folder of results")
    group.addoption("--budget", type=float, default=540.0, metavar="SECONDS", help="time of this call")
    group.addoption("--rehearse", action="store_true", help="run all commands on the CPU, tiny")
    group.addoption("--commit", help="of the tree, where it is no git tree")


def pytest_configure(config: pytest.Config) -> None:
    """Begin a call."""
    options = config.option
    if options.collectonly:
        return
    if not 0 < options.budget < float("inf"):
        raise pytest.UsageError(f"--budget {options.budget:g}: it may be any number of seconds above 0")
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise pytest.UsageError(f"{options.output} cannot be made: {error.strerror}; choose another --output") from None
    config.stash[RUN] = Run(
        output=options.output.absolute(),
        device="cpu" if options.rehearse else "cuda",
        commit=options.commit or own_build()[1],
        until_s=time.monotonic() + options.budget,
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Leave out what has a result."""
    run = config.stash.get(RUN, None)
    if run is not None:
        run.checks = {name_of(item): (getattr(item, "obj", None).__doc__ or "").partition("\n")[0] for item in items}
    yield
    if run is None:
        return
    run.chosen = [name_of(item) for item in items]
    done = [item for item in items if run.is_done(name_of(item))]
    config.hook.pytest_deselected(items=done)
    items[:] = [item for item in items if item not in done]
    for item in items if run.device == "cpu" else ():
        item.add_marker(pytest.mark.timeout(REHEARSED_LIMITS * limit_s(item)), append=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave for another call what does not fit into this one."""
    run = item.config.stash[RUN]
    if not any(item.iter_markers("skip")) and run.until_s - time.monotonic() < limit_s(item) + SPARE_S:
        run.left.append(name_of(item))
        pytest.skip("left for another call, since it would not fit into the budget")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep a check's result and log: of its call, or of a set-up or an end that failed."""
    report = yield
    run, name = item.config.stash[RUN], name_of(item)
    if name in run.left or (report.when != "call" and report.passed):
        return report
    session = getattr(item, "funcargs", {}).get("gpu")
    findings = tuple(session.findings) if isinstance(session, Session) else ()
    verdict, reason = _judge(report, call, findings)
    result = Result(
        name=name,
        verdict=verdict,
        reason=reason,
        findings=findings,
        elapsed_s=report.duration,
        started_ns=int(call.start * 1e9),
        commit=run.commit,
        is_rehearsal=run.device == "cpu",
    )
    (run.output / f"{name}.log").write_text(f"{report.capstdout}{report.capstderr}{report.longreprtext}\n")
    (run.output / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return report


def _judge(
    report: pytest.TestReport, call: pytest.CallInfo[None], findings: tuple[Finding, ...]
) -> tuple[Verdict, str]:
    if report.passed:
        return ("ok" if any(row.verdict == "ok" for row in findings) else "seen"), ""
    assert call.excinfo is not None
    reason = str(call.excinfo.value).partition("\n")[0]
    if report.skipped:
        return "skipped", reason
    if reason.startswith("off: "):
        return "off", ""
    return ("timed out" if "from pytest-timeout" in reason else "failed"), f"{call.excinfo.typename}: {reason}"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the table, and fail where any result is bad, of this call or an earlier one."""
    run = session.config.stash.get(RUN, None)
    if run is None:
        return
    (run.output / "table.md").write_text(table(run, read_machine()))
    if run.chosen and exitstatus != pytest.ExitCode.INTERRUPTED:
        results = [run.result(name) for name in run.chosen]
        is_bad = any(result is not None and result.verdict in BAD for result in results)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED if is_bad else pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say where the table is and what is left."""
    run = config.stash.get(RUN, None)
    if run is not None:
        terminalreporter.write_line(run.counted())
        if run.left:
            terminalreporter.write_line(f"left for another call: {', '.join(run.left)}")
        terminalreporter.write_line(f"results, logs and table.md are in {run.output}")


def table(run: Run, machine: Machine) -> str:
    """Return the Markdown of all checks for `docs/measured`, with the source of each bound."""
    commit = f"{run.commit}{', with changes' if machine.is_dirty else ''}"
    lines = [f"# Checks on {machine.hardware(run.device)}", "", f"- commit: {commit}"]
    for name in (
        "torch_version",
        "torch_cuda_version",
        "nccl_version",
        "driver_version",
        "python_version",
        "kernel",
        "cpu",
    ):
        lines.append(f"- {name}: {getattr(machine, name) or machine.absent.get(name, 'unknown')}")
    lines += [f"- {REHEARSAL}"] if run.device == "cpu" else []
    lines += [
        "",
        run.counted(),
        "",
        "| check | what | seen | expected | verdict | source |",
        "|---|---|---|---|---|---|",
    ]
    for name in run.checks:
        for cells in _rows(run, name):
            lines.append("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _rows(run: Run, name: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for the check as a whole, and one for each finding."""
    result = run.result(name)
    if result is None:
        yield (name, run.checks[name], "", "", "not run", "")
        return
    yield (name, run.checks[name], result.reason or f"{result.elapsed_s:.0f} s", "", result.verdict, "")
    for row in result.findings:
        yield ("", row.what, row.seen, row.expected, row.verdict, row.source)


def name_of(item: pytest.Item) -> str:
    """Return a check's name, which is also that of its files: `test_faults[kill]` is faults-kill."""
    return re.sub(r"\W+", "-", item.name.removeprefix("test_")).strip("-")


def limit_s(item: pytest.Item) -> float:
    """Return how long a check may take."""
    marker = item.get_closest_marker("timeout")
    assert marker is not None, f"{item.name} has no limit"
    return float(marker.args[0])
