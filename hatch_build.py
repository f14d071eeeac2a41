"""Compiles the scanner of traces into the wheel, where there is a C compiler; without it Python alone reads them."""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("collectors", "traces", "reading", "scanner", "module.c")
MODULE = Path("collectors", "traces", "reading", "_scanner.abi3.so")
"""It speaks Python's stable ABI, so that one file serves this and all later versions."""

OPTIONS = ("-std=c11", "-O2", "-fPIC", "-Wall", "-Wextra")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """What hatchling calls as it builds a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put the module into the wheel; of an editable installation into the tree, which git is told to ignore."""
        root = Path(self.root)
        self.folder = tempfile.TemporaryDirectory()
        module = root / MODULE if version == "editable" else Path(self.folder.name, MODULE.name)
        why_not = compile_into(module, root)
        if why_not is not None:
            self.app.display_warning(f"the scanner of traces was not built: {why_not}; Python alone will read them")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"
        if version != "editable":
            build_data["force_include"][str(module)] = MODULE.as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Throw away what the wheel has now."""
        self.folder.cleanup()


def compile_into(module: Path, root: Path) -> str | None:
    """Compile the module; why it cannot be, None where it was."""
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "")
    if sys.implementation.name != "cpython" or not linker:
        return "it is written for CPython with a compiler like gcc"
    include = sysconfig.get_path("include")
    command = [*linker, *OPTIONS, f"-I{include}", str(root / SOURCE), "-o", str(module)]
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
        return f"{linker[0]} cannot be run ({error.strerror})"
    if ended.returncode:
        return f"{linker[0]} said: {ended.stdout.strip().splitlines()[-1] if ended.stdout.strip() else 'nothing'}"
    return None
