"""Every module of the project can be imported, and imports nothing that this release of Python or torch deprecates.
Every name of torch that a module reads exists: also private names, and those that only ranks on a GPU call.

pytest collects it where it is named, as `make test-torch` and `make test-python` do.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
HOUSES = ("bench", "collectors", "dashboards", "workloads")
OF_NCCL = "torch.distributed.ProcessGroupNCCL"
"""The one name that a build without NCCL lacks."""


def _modules(house: str) -> list[str]:
    paths = sorted((ROOT / house).rglob("*.py"))
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return [name.removesuffix(".__init__") for name in names if not name.endswith(".__main__")]


@pytest.mark.parametrize("house", HOUSES)
def test_all_modules_can_be_imported(house: str) -> None:
    code = f"import importlib\nfor name in {_modules(house)!r}:\n    importlib.import_module(name)"
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def _torch_names(tree: ast.Module) -> Iterator[str]:
    """Names that the module imports from torch, and attributes that it reads of them: torch.cuda.Event."""
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    yield alias.name
                    imported[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "torch":
            for alias in node.names:
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        attributes: list[str] = []
        value: ast.AST = node
        while isinstance(value, ast.Attribute):
            attributes.insert(0, value.attr)
            value = value.value
        if attributes and isinstance(value, ast.Name) and value.id in imported:
            yield ".".join([imported[value.id], *attributes])


def _exists(name: str) -> bool:
    """Whether the name exists. A package has a module as its attribute only once the module is imported."""
    value: object = importlib.import_module("torch")
    path = "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if not hasattr(value, part):
            try:
                importlib.import_module(path)
            except ImportError:
                return False
        value = getattr(value, part)
    return True


@pytest.mark.parametrize("house", HOUSES)
def test_torch_has_every_name_that_is_read_of_it(house: str) -> None:
    trees = [ast.parse(path.read_text()) for path in sorted((ROOT / house).rglob("*.py"))]
    names = {name for tree in trees for name in _torch_names(tree)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # To import a module of torch may warn; whether ours do is tested above.
        missing = sorted(name for name in names if not _exists(name))
    assert [name for name in missing if dist.is_nccl_available() or not name.startswith(OF_NCCL)] == []
