"""Build hook of the package: the trace scanner in C, the package's commit, and the copy of a module.

Without a C compiler, Python alone reads traces. Without git, runs of the installed program have no commit.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("collectors", "traces", "reading", "scanner", "module.c")
MODULE = Path("collectors", "traces", "reading", "_scanner.abi3.so")
"""It uses Python's stable ABI, so that one file works with this and all later versions."""

BUILT_FROM = Path("bench", "machine", "built_from.json")
"""Commit and dirtiness of the git tree that a package was built from; `bench.machine.machine` reads it."""

WATCH = Path("collectors", "watch", "observatory_watch.py")
"""Copied to the top level, for `from observatory_watch import step` in a training script, watched or not."""

OPTIONS = ("-std=c11", "-O2", "-fPIC", "-Wall", "-Wextra")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """The hook that hatchling calls when it builds a wheel or a source distribution."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the commit to both kinds of package, and the scanner and the copied module to the wheel.

        An editable installation reads the commit from git; its scanner is in the tree, where git ignores it.
        """
        root = Path(self.root)
        self.folder = tempfile.TemporaryDirectory()
        if version != "editable" and not (root / BUILT_FROM).exists():  # A source distribution already has it.
            try:
                built_from = Path(self.folder.name, BUILT_FROM.name)
                built_from.write_text(json.dumps(source_state(root)))
                build_data["force_include"][str(built_from)] = BUILT_FROM.as_posix()
            except (OSError, subprocess.SubprocessError) as error:
                self.app.display_warning(f"runs of this package will have no commit: git cannot report it ({error})")
        if self.target_name == "sdist":
            return
        # A copy, because hatchling would move a file of the tree that is included under another name.
        build_data["force_include"][shutil.copy(root / WATCH, self.folder.name)] = WATCH.name
        module = root / MODULE if version == "editable" else Path(self.folder.name, MODULE.name)
        why_not = compile_into(module, root)
        if why_not is not None:
            self.app.display_warning(f"the trace scanner was not built: {why_not}; Python will read traces more slowly")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"
        if version != "editable":
            build_data["force_include"][str(module)] = MODULE.as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary files, which are now in the package."""
        self.folder.cleanup()


def source_state(root: Path) -> dict[str, str | bool]:
    """Return the commit of the tree, and whether tracked files have changed.

    Raises:
        OSError, subprocess.SubprocessError: it is not a git tree, or git fails.
    """
    if not (root / ".git").exists():
        raise FileNotFoundError(f"{root} is not a git tree")

    def git(*arguments: str) -> str:
        # Whoever builds a tree runs its code anyway, so another user's tree is no additional danger.
        command = ["git", "-c", f"safe.directory={root}", "--no-optional-locks", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    return {
        "commit": git("rev-parse", "HEAD"),
        "is_dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
    }


def compile_into(module: Path, root: Path) -> str | None:
    """Compile the module. Return why it cannot be compiled; None if it was."""
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "")
    if sys.implementation.name != "cpython" or not linker:
        return "it is written for CPython with a compiler like gcc"
    include = sysconfig.get_path("include")
    command = [*linker, *OPTIONS, f"-I{include}", str(root / SOURCE), "-o", str(module)]
    try:
        compiled = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
        return f"{linker[0]} cannot be run ({error.strerror})"
    if compiled.returncode:
        return f"{linker[0]} said: {compiled.stdout.strip().splitlines()[-1] if compiled.stdout.strip() else 'nothing'}"
    return None
