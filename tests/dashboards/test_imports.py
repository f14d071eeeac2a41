"""Who knows whom: dashboards know the catalogue, and each foreign library has one door."""

import re
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("bench", "collectors", "dashboards", "workloads")


_FILES = {"collectors.settings_file", "collectors.files"}
"""Doors to files that others may have written or put links into: of thresholds.toml, and of what is rendered."""


def test_dashboards_know_of_ours_the_catalogue_and_the_doors_to_files_only(imports: grimp.ImportGraph) -> None:
    dashboards = {"dashboards", *imports.find_descendants("dashboards")}
    known = {name for one in dashboards for name in imports.find_modules_directly_imported_by(one)} - dashboards
    catalogue = {"collectors.metrics", *imports.find_descendants("collectors.metrics")}
    assert known >= _FILES
    assert known - _FILES <= catalogue


def test_of_the_runner_only_two_commands_and_the_stack_know_dashboards(imports: grimp.ImportGraph) -> None:
    dashboards = {"dashboards", *imports.find_descendants("dashboards")}
    knowing = {name for one in dashboards for name in imports.find_modules_that_directly_import(one)} - dashboards
    commands = {name for name in knowing if not name.startswith("bench.serve.stack.")}
    assert commands == {"bench.cli.dashboards", "bench.cli.watching.runbook"}


@pytest.mark.parametrize(
    ("library", "doors"),
    [("grafana_api", {"publishing"}), ("yaml", {"board", "panels", "rules"})],
)
def test_a_foreign_library_has_few_doors(library: str, doors: set[str]) -> None:
    importing = {
        path.relative_to(ROOT / "dashboards").parts[0].removesuffix(".py")
        for path in sorted((ROOT / "dashboards").rglob("*.py"))
        if re.search(rf"^\s*(from|import) {library}\b", path.read_text(), re.MULTILINE)
    }
    assert importing == doors
