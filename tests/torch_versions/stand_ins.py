"""Stand-ins for the GPU libraries that a CUDA build of torch is linked with, so that it loads without them.

A stand-in is a shared library with the name and the symbols that torch asks for. Its functions tell their name and end
the process: on a machine without a GPU nothing calls them. Needs Linux, a C compiler and binutils.
Not covered: the driver (libcuda.so.1) and libraries that torch loads itself when it meets a GPU; they stay missing, as
on any machine without one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

TOOLS = ("cc", "ldd", "nm", "readelf")
MISSING = re.compile(r"^\s*(\S+) => not found$", re.MULTILINE)
NEEDED = re.compile(r"\(NEEDED\)\s+Shared library: \[(\S+)\]")
VERSIONS_OF = re.compile(r"Version: 1\s+File: (\S+)|  Name: (\S+)\s+Flags:")
STRONG = re.compile(r"^\s*U ([A-Za-z_]\w*)(?:@+(\S+))?$", re.MULTILINE)

HEAD = """#include <stdio.h>
#include <stdlib.h>
static void stop(const char *name) {
    fprintf(stderr, "%s was called: this environment has a stand-in for %s\\n", name, LIBRARY);
    abort();
}
"""

Symbols = dict[str, set[str]]
"""Names by the version that a symbol is asked for with; "" is none."""


class CannotStandIn(RuntimeError):
    """Why no stand-ins can be built here."""


def stand_in_for_missing(library: Path) -> list[Path]:
    """Build into the library's folder what the loader misses for it and its neighbours, and say what was built.

    The folder must be on the libraries' own search path, as torch/lib is.

    Raises:
        CannotStandIn: a tool is missing or failed.
    """
    if absent := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise CannotStandIn(f"{', '.join(absent)} not found; install a C compiler with its binutils")
    missing = sorted(set(MISSING.findall(_said(["ldd", str(library)]))))
    if not missing:
        return []
    asked = _asked(_neighbours(library), missing)
    return [_build(library.parent / name, asked[name]) for name in missing]


def _neighbours(library: Path) -> list[Path]:
    """The library and those of its folder that it needs, directly or not."""
    found, left = [], [library]
    while left:
        path = left.pop()
        if path in found or not path.exists():
            continue
        found.append(path)
        left += [path.parent / name for name in NEEDED.findall(_said(["readelf", "-d", str(path)]))]
    return found


def _asked(libraries: Iterable[Path], missing: Sequence[str]) -> dict[str, Symbols]:
    """What the libraries ask of each missing one.

    The loader looks for a symbol with a version in the one library that has this version; one without a version may be
    in any, and is sorted by its first letters (ncclSend is of libnccl.so.2) for the sake of what a stand-in says.
    """
    asked: dict[str, Symbols] = {name: defaultdict(set) for name in missing}
    for path in libraries:
        owners = _owners(_said(["readelf", "-V", str(path)]))
        for symbol, version in STRONG.findall(
            _said(["nm", "-D", "--undefined-only", "--with-symbol-versions", str(path)])
        ):
            owner = owners.get(version) if version else _owner_by_name(symbol, missing)
            if owner in asked:
                asked[owner][version].add(symbol)
    return asked


def _owners(versions: str) -> dict[str, str]:
    """Which library has each version, as `readelf -V` says it: a line of the library, then its versions."""
    owners, library = {}, ""
    for match in VERSIONS_OF.finditer(versions):
        if match[1]:
            library = match[1]
        else:
            owners[match[2]] = library
    return owners


def _owner_by_name(symbol: str, missing: Sequence[str]) -> str | None:
    """The library whose name the symbol begins with; of several the longest: cusparseLtInit is not of libcusparse."""
    stems = {name.removeprefix("lib").split(".")[0].removesuffix("_host").lower(): name for name in missing}
    fitting = [stem for stem in stems if symbol.lower().startswith(stem)]
    return stems[max(fitting, key=len)] if fitting else None


def _build(path: Path, symbols: Symbols) -> Path:
    source = [f'#define LIBRARY "{path.name}"', HEAD]
    nodes = []
    for version, names in sorted(symbols.items()):
        source += [f'void {name}(void) {{ stop("{name}"); }}' for name in sorted(names)]
        if version:
            nodes.append(f"{version} {{ global: {'; '.join(sorted(names))}; }};")
    with tempfile.TemporaryDirectory() as folder:
        code, script = Path(folder, "stand_in.c"), Path(folder, "versions")
        code.write_text("\n".join(source) + "\n")
        script.write_text("\n".join(nodes) + "\n")
        options = ["-shared", "-fPIC", "-O0", "-w", "-fno-builtin", f"-Wl,-soname,{path.name}"]
        if nodes:
            options.append(f"-Wl,--version-script={script}")
        _said(["cc", *options, "-o", str(path), str(code)])
    return path


def _said(command: Sequence[str]) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["nothing"]
        raise CannotStandIn(f"{command[0]} failed on {command[-1]}: {lines[-1]}")
    return ended.stdout
