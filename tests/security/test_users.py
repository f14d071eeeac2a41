"""The two users are real ones: the kernel keeps them apart, both reach the project, and nothing of them is left."""

from __future__ import annotations

import signal
import subprocess

import psutil

from tests.security.users import processes_of, two_users


def test_each_user_reaches_the_project_and_not_the_home_of_the_other() -> None:
    with two_users() as (victim, attacker):
        (victim.home / "secret").write_text("kept")
        seen = attacker.python("import bench, os; print(os.getuid())")
        assert (seen.returncode, seen.stdout) == (0, f"{attacker.uid}\n"), seen.stderr
        assert attacker.run(["cat", str(victim.home / "secret")]).returncode != 0
        assert attacker.run(["touch", str(victim.home / "more")]).returncode != 0


def test_nothing_of_the_users_is_left() -> None:
    with two_users() as (victim, attacker):
        process = attacker.start(["sleep", "600"], stdin=subprocess.DEVNULL)
        folder = victim.home.parent
        assert psutil.Process(process.pid).uids().real == attacker.uid
    assert process.wait() == -signal.SIGKILL
    assert not folder.exists()
    assert not processes_of(attacker.uid)
