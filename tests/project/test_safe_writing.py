"""Files are written, replaced and locked in one place, `collectors/files.py`, or there is a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = "collectors/files.py"
REASONS = {
    ("bench/results/timelines.py", "hardlink_to"): "another name for a file in the same run's folder, which is ours",
    ("bench/engines/local.py", "open"): "in a temporary folder, which is made for this user alone",
    ("bench/machine/temporary_folders.py", "os.open"): "a lock in a new folder, which is made for this user alone",
    ("bench/session/checkouts.py", "open"): "an archive in memory",
    ("bench/engines/wire/frames.py", "os.open"): "a new key: with O_EXCL, in a folder that a person named",
    ("bench/store/database.py", "open"): "opened and closed: whether a store may be written, for a dry run",
    ("workloads/core/checkpointing.py", "write_text"): "in a checkpoint's new folder, inside the run's own",
    ("collectors/watch/observatory_watch_process.py", "fcntl.lockf"): "in an interpreter without our packages",
    ("collectors/watch/observatory_watch_window.py", "open"): "in an interpreter without our packages",
    ("collectors/watch/observatory_watch_window.py", "os.replace"): "in an interpreter without our packages",
    ("collectors/watch/observatory_watch_tracer.py", "open"): "in an interpreter without our packages",
    ("collectors/watch/observatory_watch_tracer.py", "os.replace"): "in an interpreter without our packages",
    ("bench/session/watched/windows.py", "hardlink_to"): "a request in the hook's folder, where only the first may be",
    ("collectors/watch/observatory_watch_still.py", "open"): "in an interpreter without our packages: the run's folder",
    ("collectors/watch/observatory_watch_still.py", "os.replace"): "in an interpreter without our packages",
    ("bench/store/prune.py", "rename"): "what was renamed is compared with the folder that was opened",
}
METHODS = {"write_bytes", "write_text", "touch", "rename", "hardlink_to", "symlink_to"}
FUNCTIONS = {"os.replace", "os.rename", "os.link", "os.symlink", "fcntl.flock", "fcntl.lockf", "shutil.copyfile"}
"""Of `open`, only modes that write count; of `os.open`, only flags that make a file; of `replace`, that of a path."""


def _writes(path: Path) -> Iterator[str]:
    """Yield what a file calls that writes, replaces or locks."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        method = name.rpartition(".")[2]
        if name in FUNCTIONS or (isinstance(node.func, ast.Attribute) and method in METHODS):
            yield name if name in FUNCTIONS else method
        elif name == "os.open":
            if "O_CREAT" in ast.unparse(node):
                yield name
        elif method == "replace" and len(node.args) == 1 and not node.keywords and "." in name:
            yield "replace"
        elif method == "open":
            words = [*node.args, *(word.value for word in node.keywords)]
            modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
            if any(len(mode) <= 3 and set(mode) & set("wax+") for mode in modes):
                yield "open"


def test_files_are_written_and_locked_in_one_place() -> None:
    found = {
        (str(path.relative_to(ROOT)), call)
        for folder in ("bench", "collectors", "dashboards", "workloads")
        for path in (ROOT / folder).rglob("*.py")
        for call in _writes(path)
    }
    others = {(file, call) for file, call in found if file != PLACE}
    assert others == REASONS.keys()
