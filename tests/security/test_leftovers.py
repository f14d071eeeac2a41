"""A sweep of TMPDIR, where several users have folders, touches no other user's, and says what it cannot remove."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.machine.temporary_folders import sweep
from tests.security.users import User

pytestmark = pytest.mark.slow

KILLED = (
    "import os, signal\n"
    "from bench.machine.temporary_folders import TemporaryFolder\n"
    "folder = TemporaryFolder('observatory-node-').path\n"
    "(folder / 'run').mkdir()\n"
    "(folder / 'run' / 'log').write_text('x')\n"
    "print(folder, flush=True)\n"
    "os.kill(os.getpid(), signal.SIGKILL)\n"
)


@pytest.fixture
def temporary(victim: User) -> Path:
    """A folder such as /tmp."""
    folder = victim.home.parent / os.urandom(4).hex()
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def killed(user: User, temporary: Path) -> Path:
    """Return the folder of a process of the user that was killed."""
    return Path(user.python(KILLED, env={"TMPDIR": str(temporary)}).stdout.strip())


def clean(user: User, temporary: Path, *, code: int = 0) -> dict[str, tuple[str, str]]:
    """Clean as this user; return what was done with each folder, and why, by name."""
    ended = user.observatory("doctor", "--clean", "--format", "json", env={"TMPDIR": str(temporary)})
    assert ended.returncode == code, ended.stderr
    folders = json.loads(ended.stdout)["folders"]
    return {Path(folder["folder"]).name: (folder["action"], folder["reason"]) for folder in folders}


def test_a_user_cleans_their_own_folders_alone(temporary: Path, victim: User, attacker: User) -> None:
    own, others = killed(victim, temporary), killed(attacker, temporary)
    done = clean(victim, temporary)
    assert done[own.name] == ("removed", "its process has ended")
    assert done[others.name] == ("left", f"{others} belongs to another user")
    assert (others / "run/log").exists()


def test_root_leaves_the_folders_of_users(temporary: Path, victim: User, monkeypatch: pytest.MonkeyPatch) -> None:
    of_user = killed(victim, temporary)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    (swept,) = sweep()
    assert swept.left == f"{of_user} belongs to another user"
    assert (of_user / "run/log").exists()


def test_another_users_link_leads_a_sweep_nowhere(temporary: Path, victim: User, attacker: User) -> None:
    target = killed(victim, victim.home)
    link = temporary / "observatory-node-link"
    link.symlink_to(target)
    os.lchown(link, attacker.uid, attacker.uid)
    assert clean(victim, temporary)[link.name] == ("left", "it is a link")
    assert (target / "run/log").exists()


def test_folders_that_others_may_replace_are_left(temporary: Path, victim: User) -> None:
    own = killed(victim, temporary)
    temporary.chmod(0o777)
    assert clean(victim, temporary)[own.name] == ("left", f"other users may write to {temporary}")
    assert (own / "run/log").exists()


def test_what_cannot_be_removed_is_named_and_the_next_time_removed(temporary: Path, victim: User) -> None:
    own, other = killed(victim, temporary), killed(victim, temporary)
    (own / "run").chmod(0o500)
    (own / "more").touch()
    os.chown(own / "more", victim.uid, victim.uid)
    done = clean(victim, temporary, code=4)
    assert done[own.name] == ("left", "it cannot be removed: log: Permission denied")
    assert done[other.name][0] == "removed"
    assert sorted(path.name for path in own.iterdir()) == ["lock", "run"]
    (own / "run").chmod(0o700)
    assert clean(victim, temporary)[own.name][0] == "removed"
