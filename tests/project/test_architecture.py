"""The page on architecture names what exists, and every folder."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/maintaining/architecture.md").read_text()
DIAGRAM = PAGE.partition("```mermaid")[2].partition("```")[0]
NODES = dict(re.findall(r'(\w+)\["([^":]+): [^"]+"\]', DIAGRAM))
ARROWS = re.findall(r"^ *(\w+)(?:\[.*\])? --> (\w+)", DIAGRAM, flags=re.MULTILINE)
FOLDERS = sorted(
    str(path.parent.relative_to(ROOT))
    for house in ("bench", "collectors", "dashboards", "workloads")
    for path in (ROOT / house).rglob("__init__.py")
)


def test_each_file_of_the_diagram_exists() -> None:
    assert [file for file in NODES.values() if not (ROOT / file).is_file()] == []


def test_each_arrow_joins_two_files_of_the_diagram() -> None:
    assert len(ARROWS) >= len(NODES) - 1
    assert {name for arrow in ARROWS for name in arrow} == NODES.keys()


def test_each_path_of_the_page_exists() -> None:
    paths = set(re.findall(r"`((?:bench|collectors|dashboards|tests|workloads)/[\w/.]*)`", PAGE))
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_each_folder_is_in_the_table() -> None:
    assert [folder for folder in FOLDERS if f"`{folder}/`" not in PAGE] == []
