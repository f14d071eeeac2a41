"""Compiles the project's source by the Python that runs this, and looks up what it takes from the standard library.

    python3.14 -P tests/torch_versions/source_check.py

It needs no package, so it also runs where there is none of the project's for a Python yet. It prints a line for each
file that does not compile without warnings, and for each name that the standard library lacks there.
Not seen: names that are reached in another way than `module.name` or `from module import name`.
"""

from __future__ import annotations

import ast
import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ANNOTATIONS = {("hashlib", "_Hash")}
"""Names that type checkers alone know."""


def sources(root: Path) -> list[Path]:
    """Return the project's files."""
    return sorted(path for path in root.glob("*/**/*.py") if not path.relative_to(root).parts[0].startswith("."))


def problems(paths: list[Path]) -> Iterator[str]:
    """Yield a line for each problem in the files."""
    names: dict[tuple[str, str], Path] = {}
    for path in paths:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                tree = ast.parse(path.read_bytes(), filename=str(path))
                compile(tree, str(path), "exec")
        except (SyntaxError, Warning) as error:
            yield f"{path}: {type(error).__name__}: {error}"
        else:
            names |= dict.fromkeys(_names(tree), path)
    for (module, name), path in sorted(names.items()):
        is_standard = module.partition(".")[0] in sys.stdlib_module_names and (module, name) not in ANNOTATIONS
        if is_standard and not _exists(module, name):
            yield f"{path}: this Python has no {module}.{name}"


def _names(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each module and a name in it that a file uses."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                modules[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr


def _exists(module: str, name: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # A module or name that is deprecated is as good as gone.
            if hasattr(importlib.import_module(module), name):
                return True
            importlib.import_module(f"{module}.{name}")
    except (ImportError, Warning):
        return False
    return True


if __name__ == "__main__":
    files = sources(ROOT)
    found = list(problems(files))
    print("\n".join([*found, f"Python {sys.version.partition(' ')[0]}: {len(files)} files, {len(found)} problems"]))
    sys.exit(bool(found))
