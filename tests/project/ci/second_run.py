"""Run the failed tests of a suite once more, alone: `python -m tests.project.ci.second_run` after a pytest that failed.

A test that passes then is printed as flaky, and belongs on the list in docs/maintaining/testing.md, with its cause.
Three kinds get no second run: a test on that list, a test in a file that the change touches, and more than `MOST` tests
at once, which no accident explains. Exits with 0 if all passed, else with 1.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MOST = 6
"""More failures than a busy machine causes."""
_EXIT_CODE = "observatory/exit_code"
_CACHE = Path(".pytest_cache", "v")
_LISTED = re.compile(r"^- `(tests/[^`]+)`: \S", re.MULTILINE)


def keep_exit_code(config: pytest.Config, exit_code: int) -> None:
    """Keep how pytest ended in its cache: what failed before a run broke off is not all that would have failed."""
    cache = getattr(config, "cache", None)  # Missing in the second run itself.
    if cache is not None and not hasattr(config, "workerinput"):
        cache.set(_EXIT_CODE, int(exit_code))


def listed_as_flaky(page: str) -> set[str]:
    """Return the tests on the list in docs/maintaining/testing.md, each by its name without parameters."""
    return set(_LISTED.findall(page))


def why_no_second_run(failed: Iterable[str], touched: set[str], listed: set[str]) -> str | None:
    """Say why these tests must not run again, None if they may.

    failed: pytest's names. touched: paths of the files in the change, from the root. listed: see `listed_as_flaky`.
    """
    names = sorted(failed)
    if not names:
        return "the run broke off, or no test failed"
    if len(names) > MOST:
        return f"{len(names)} tests failed, and a busy machine explains {MOST} at most"
    for name in names:
        if "::" not in name:
            return f"{name} could not be loaded"
        if name.partition("[")[0] in listed:
            return f"{name} is on the list of flaky tests: find its cause"
        if name.partition("::")[0] in touched:
            return f"{name} is in a file that this change touches"
    return None


def touched_files(root: Path) -> set[str]:
    """Return the paths that the change touches: since the commit in BASE, else by the commits of the last day."""
    base = os.environ.get("BASE")
    if base:
        return set(_git(root, "diff", "--name-only", f"{base}...HEAD"))
    (committed_s,) = _git(root, "log", "-1", "--format=%ct")
    return set(_git(root, "log", f"--since={int(committed_s) - 86_400}", "--name-only", "--format="))


def main() -> int:
    """Run what pytest's cache in the working directory calls failed."""
    failed = _failed()
    reason = why_no_second_run(
        failed, touched_files(ROOT), listed_as_flaky((ROOT / "docs/maintaining/testing.md").read_text())
    )
    if reason is not None:
        print(f"no second run: {reason}")
        return 1
    print(f"second run, alone, of {len(failed)} failed tests", flush=True)
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *failed])
    if done.returncode != 0:
        return 1
    for name in failed:
        print(f"flaky: {name}")
    return 0


def _failed() -> list[str]:
    """The tests that failed, nothing if the run did not get to its end."""
    try:
        if json.loads((_CACHE / _EXIT_CODE).read_text()) != pytest.ExitCode.TESTS_FAILED:
            return []
        return sorted(json.loads((_CACHE / "cache" / "lastfailed").read_text()))
    except FileNotFoundError:
        return []


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line]


if __name__ == "__main__":
    sys.exit(main())
