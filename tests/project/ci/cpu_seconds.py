"""A pytest plugin that prints the CPU seconds of each test file, and whether a suite keeps its budget.

Seconds on a clock depend on what else runs; CPU seconds hardly do. A test's are those of its process and of all
processes that it started and waited for: a server's count where its fixture ends it, a daemon's never, nor those of
ranks, whose forkserver nobody waits for. What the whole machine computed during the run is printed therefore, too: on a
quiet machine that is the suite's true cost.
`--cpu-budget=SECONDS` prints at the end of a run what the suite took and which files took most, and writes all files to
`.pytest_cache/v/observatory/cpu_seconds`.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Generator

import psutil
import pytest

MOST = 15
"""Files that the summary names."""
_PROPERTY = "cpu_s"
_CACHE_KEY = "observatory/cpu_seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a suite state its budget."""
    parser.addoption("--cpu-budget", type=int, metavar="SECONDS", help="print CPU seconds by file, and their budget")


class CpuSeconds:
    """Measures each test where it runs, and adds up the reports where they arrive."""

    def __init__(self, config: pytest.Config, budget_s: int) -> None:
        self._config = config
        self._budget_s = budget_s
        self._begin_s = _used_s()
        self._machine_begin_s = _machine_used_s()
        self.by_file_s: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add to a test's last report what this process has used since the last report of the test before."""
        report = yield
        if report.when == "teardown":
            now_s = _used_s()
            report.user_properties.append((_PROPERTY, now_s - self._begin_s))
            self._begin_s = now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Sum by file; with xdist this runs in the process that collects the reports."""
        for name, value in report.user_properties:
            if name == _PROPERTY and report.when == "teardown" and isinstance(value, float):
                self.by_file_s[report.nodeid.partition("::")[0]] += value

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the sum, the budget and the files that took most."""
        if hasattr(self._config, "workerinput"):
            return
        total_s = sum(self.by_file_s.values())
        verdict = "within" if total_s <= self._budget_s else "OVER"
        terminalreporter.section("CPU seconds")
        terminalreporter.write_line(f"{total_s:.0f} s, {verdict} the budget of {self._budget_s} s")
        machine_s = _machine_used_s() - self._machine_begin_s
        terminalreporter.write_line(f"{machine_s:.0f} s were computed on this machine meanwhile, by all programs")
        most = sorted(self.by_file_s.items(), key=lambda item: -item[1])
        for path, cpu_s in most[:MOST]:
            terminalreporter.write_line(f"{cpu_s:7.1f} s  {path}")
        cache = getattr(self._config, "cache", None)
        if cache is not None:
            cache.set(_CACHE_KEY, {path: round(cpu_s, 2) for path, cpu_s in most})


def pytest_configure(config: pytest.Config) -> None:
    """Measure where a budget is given."""
    budget_s = config.getoption("--cpu-budget")
    if budget_s is not None:
        config.pluginmanager.register(CpuSeconds(config, budget_s), "cpu-seconds")


def _used_s() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _machine_used_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.nice + times.system
