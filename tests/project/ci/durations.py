"""Where the time of the tests goes, by what they wait for and by file, as the tables of docs/maintaining/testing.md.

.venv/bin/python -m pytest -n 3 --dist loadfile -m "not slow and not alone and not ray" --junitxml=durations.xml
.venv/bin/python -m tests.project.ci.durations durations.xml
"""

from __future__ import annotations

import argparse
import re
import xml.etree.ElementTree as Tree
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

Key = TypeVar("Key")
ROOT = Path(__file__).parents[2]
WAITS = {
    "servers (Prometheus, Alertmanager, PostgreSQL, promtool)": r"mark\.stack|support\.servers",
    "ranks of a whole run (`observatory`, an engine)": r"LocalEngine\(|\"-m\", \"bench\"|tests\.gpu\.first|open_engine",
    "gloo ranks that call one function": r"\bon_(fresh_)?ranks\b",
    "other processes": r"\bsubprocess\.",
}
"""What a file's tests wait for, and what its text then has; the first that fits counts."""
OWN = "nothing: computed in the test's own process"


def waits_for(path: Path) -> str:
    """What most of a file's time is spent on."""
    text = path.read_text()
    return next((what for what, pattern in WAITS.items() if re.search(pattern, text)), OWN)


def path_of(classname: str) -> Path:
    """The file of a test, whose class the report names as a module's, with the test's own class at times."""
    parts = classname.split(".")
    while not (path := ROOT.joinpath(*parts).with_suffix(".py")).exists():
        parts.pop()
    return path


def _most(seconds: Mapping[Key, float]) -> list[tuple[Key, float]]:
    return sorted(seconds.items(), key=lambda item: -item[1])


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="what pytest wrote as --junitxml")
    parser.add_argument("--files", type=int, default=25, help="how many files to print")
    arguments = parser.parse_args()
    seconds, tests = defaultdict[Path, float](float), Counter[Path]()
    for case in Tree.parse(arguments.report).iter("testcase"):
        path = path_of(case.attrib["classname"])
        seconds[path] += float(case.attrib["time"])
        tests[path] += 1
    total = sum(seconds.values())
    by_wait, files_by_wait = defaultdict[str, float](float), Counter[str]()
    for path, spent_s in seconds.items():
        by_wait[waits_for(path)] += spent_s
        files_by_wait[waits_for(path)] += 1
    print("| tests wait for | files | seconds | share |\n| --- | ---: | ---: | ---: |")
    for what, spent_s in _most(by_wait):
        print(f"| {what} | {files_by_wait[what]} | {spent_s:.0f} | {spent_s / total:.0%} |")
    print(f"| all | {len(seconds)} | {total:.0f} | |\n")
    print("| file | tests | seconds | share |\n| --- | ---: | ---: | ---: |")
    for path, spent_s in _most(seconds)[: arguments.files]:
        print(f"| {path.relative_to(ROOT)} | {tests[path]} | {spent_s:.0f} | {spent_s / total:.0%} |")


if __name__ == "__main__":
    main()
