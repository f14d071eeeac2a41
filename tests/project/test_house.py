"""The house's own rules, where ruff, mypy and import-linter have none."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from pkgutil import resolve_name

import grimp
import pytest

from workloads.registry import ENTRIES

ROOT = Path(__file__).parents[2]
OURS = ("bench", "collectors", "dashboards", "workloads")
FILES = sorted(path for folder in OURS for path in (ROOT / folder).rglob("*.py"))


def _folders(top: Path) -> Iterator[Path]:
    """This folder and those beneath it that hold something of ours."""
    yield from {top, *(path for path in top.rglob("*") if path.is_dir() and path.name != "__pycache__")}


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph(*OURS)


def test_cost_models_know_nothing_but_each_other(imports: grimp.ImportGraph) -> None:
    models = {"workloads.cost_models", *imports.find_descendants("workloads.cost_models")}
    known = {name for model in models for name in imports.find_modules_directly_imported_by(model)}
    assert known <= models
    assert imports.find_modules_directly_imported_by("workloads.cost_models.shape") == set()


def test_cost_models_of_families_know_nothing_but_cost_models(imports: grimp.ImportGraph) -> None:
    shared = {"workloads.cost_models", *imports.find_descendants("workloads.cost_models")}
    of_families = {name for name in imports.modules if name.endswith(".cost_model")} | {
        "workloads.pipeline_parallel.memory",
        "workloads.pipeline_parallel.simulator",
    }
    known = {name for model in of_families for name in imports.find_modules_directly_imported_by(model)}
    assert known <= shared | of_families


def test_what_a_rank_runs_of_a_strategy_exists_in_the_folder_of_its_family() -> None:
    for spec, entry in ENTRIES:
        assert callable(resolve_name(entry)), entry
        module, _, _ = entry.partition(":")
        assert type(spec).__module__.rpartition(".")[0] == module.rpartition(".")[0]


def _named_in_strings(module: str, modules: set[str]) -> set[str]:
    """Other modules whose dotted name is a whole string of this one: it can load them, or start them by `-m`."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    return {str(text).partition(":")[0] for text in texts} & modules - {module}


@pytest.fixture(scope="module")
def known(imports: grimp.ImportGraph) -> dict[str, set[str]]:
    """The files that each file imports at its top, inside functions, or by the name of a module in a string."""
    files = {name for name in imports.modules if not imports.find_children(name)}
    return {name: imports.find_modules_directly_imported_by(name) | _named_in_strings(name, files) for name in files}


def test_no_file_imports_itself_by_way_of_others(known: dict[str, set[str]]) -> None:
    assert "workloads.fsdp.strategy" in known["workloads.registry"]  # By a string.
    TopologicalSorter(known).prepare()  # Raises CycleError, which names the circle.


def test_no_folder_imports_itself_by_way_of_others(known: dict[str, set[str]]) -> None:
    """A folder and those inside it may import each other, as a registry imports what it lists."""
    folders: dict[str, set[str]] = {}
    for name, others in known.items():
        folder = name.rpartition(".")[0]
        for other in {other.rpartition(".")[0] for other in others} - {""}:
            if not f"{folder}.".startswith(f"{other}.") and not f"{other}.".startswith(f"{folder}."):
                folders.setdefault(folder, set()).add(other)
    TopologicalSorter(folders).prepare()


def test_a_folder_has_fifteen_entries_at_most() -> None:
    for folder in sorted({folder for house in (*OURS, "tests") for folder in _folders(ROOT / house)}):
        entries = [path.name for path in folder.iterdir() if not path.name.startswith(("_", ".", "py.typed"))]
        assert len(entries) <= 15, f"{folder}: {sorted(entries)}"


def test_a_file_is_short_ascii_and_opens_with_its_idea() -> None:
    for path in FILES:
        text = path.read_text(encoding="ascii")
        if path.name == "__init__.py":
            assert text == "", path
            continue
        assert len(text.splitlines()) <= 500, path
        assert text.startswith('"""'), path
        first = text.removeprefix('"""').split('"""')[0].split("\n\n")[0].strip()
        assert first.endswith((".", ":")), path
