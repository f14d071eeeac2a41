"""A lock that another user holds, who may only read, keeps nobody waiting in silence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.security.users import User

HOLDS = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX); print(1, flush=True); input()"
WAITS = """
import sys
from pathlib import Path
from collectors.files import locked
try:
    with locked(Path(sys.argv[1]), within_s=0.2):
        print("locked")
except TimeoutError as error:
    print(error.strerror)
"""
BEGINS = """
import sys
from pathlib import Path
from bench.store import run_dir
from tests.bench.made.examples import make_machine, small_case
try:
    run_dir.begin(small_case("ddp", ranks=2), make_machine(), Path(sys.argv[1]), name="named")
except Exception as error:
    print(type(error).__name__, error)
"""


@contextmanager
def _held(user: User, path: Path) -> Iterator[int]:
    """The user holds the lock of a file or folder; gives the number of their process."""
    words = [sys.executable, "-P", "-c", HOLDS, str(path)]
    with user.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        yield process.pid
        process.communicate("\n", timeout=60)


def test_a_lock_has_a_limit_and_its_message_names_the_holder(victim: User, attacker: User) -> None:
    folder = victim.owns(victim.home.parent / "runs of all", 0o755)
    with _held(attacker, folder) as pid:
        said = victim.python(WAITS, str(folder)).stdout
    assert said.startswith(f"process {pid} ('python")
    assert f") of the user with uid {attacker.uid} has held its lock for 0.2 s; end it, or try again when" in said
    assert victim.python(WAITS, str(folder)).stdout == "locked\n"


def test_a_run_folder_that_another_holds_is_refused_by_the_holders_name(victim: User, attacker: User) -> None:
    runs = victim.owns(victim.home.parent / "runs of one", 0o755)
    folder = victim.owns(runs / "named", 0o755)
    with _held(attacker, folder) as pid:
        said = victim.python(BEGINS, str(runs), cwd=Path(__file__).parents[2]).stdout
    assert said.startswith(f"Misuse process {pid} ('python")
    assert f") of the user with uid {attacker.uid} is working on {folder}; name another folder" in said
