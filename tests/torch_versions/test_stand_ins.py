"""A library whose dependencies are missing loads with stand-ins for them, and ends the process where it calls one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.torch_versions.stand_ins import CannotStandIn, stand_in_for_missing

VERSIONED = "int drawLine(void) { return 1; }\n"
PLAIN = "int soundBell(void) { return 1; }\n"
USER = """
int drawLine(void);
int soundBell(void);
int alone(void) { return 7; }
int call(void) { return drawLine() + soundBell(); }
"""


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A library that needs two others, one of them by a version, which have been taken away."""

    def build(name: str, source: str, *options: str) -> Path:
        code = tmp_path / f"{name}.c"
        code.write_text(source)
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(tmp_path / name), str(code), *options]
        subprocess.run(command, check=True)
        return tmp_path / name

    script = tmp_path / "versions"
    script.write_text("libdraw.so.13 { global: drawLine; };\n")
    draw = build("libdraw.so.13", VERSIONED, f"-Wl,--version-script={script}")
    sound = build("libsound.so.2", PLAIN)
    library = build("libuser.so", USER, str(draw), str(sound), "-Wl,-rpath,$ORIGIN", "-Wl,-z,now")
    draw.unlink()
    sound.unlink()
    return library


def _call(library: Path, function: str) -> subprocess.CompletedProcess[str]:
    code = f"import ctypes; print(ctypes.CDLL({str(library)!r}).{function}())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_what_is_missing_is_stood_in_for(user: Path) -> None:
    assert "libdraw.so.13: cannot open shared object file" in _call(user, "alone").stderr
    assert [path.name for path in stand_in_for_missing(user)] == ["libdraw.so.13", "libsound.so.2"]
    loaded = _call(user, "alone")
    assert (loaded.stdout, loaded.stderr) == ("7\n", "")


def test_a_stand_in_that_is_called_ends_the_process_with_its_name(user: Path) -> None:
    stand_in_for_missing(user)
    called = _call(user, "call")
    assert called.returncode == -6
    assert called.stderr == "drawLine was called: this environment has a stand-in for libdraw.so.13\n"


def test_nothing_is_built_where_nothing_is_missing(user: Path) -> None:
    stand_in_for_missing(user)
    assert stand_in_for_missing(user) == []


def test_a_tool_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotStandIn, match=f"^ldd failed on {tmp_path}/libnone.so: "):
        stand_in_for_missing(tmp_path / "libnone.so")
