"""Folders that another user may replace are refused before anything is read, started or written there."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from tests.security.users import User

pytestmark = pytest.mark.slow

SMALL = ("--device", "cpu", "--shape", "tiny", "--trials", "1", "--steps", "1", "--trace-steps", "0", "--port", "0")


@pytest.fixture
def place(victim: User) -> Path:
    """A new folder that both users may enter, and root owns."""
    folder = victim.home.parent / os.urandom(4).hex()
    folder.mkdir(0o755)
    folder.chmod(0o755)
    return folder


def test_ranks_are_not_started_by_a_socket_that_another_user_may_replace(place: Path, victim: User) -> None:
    place.chmod(0o777)
    ended = victim.observatory("run", "single", *SMALL, env={"TMPDIR": str(place)})
    assert ended.returncode == 4, ended.stderr
    assert f"could be replaced: other users may write to {place}; set TMPDIR to a folder of your own" in ended.stderr


def test_a_data_folder_below_another_users_folder_is_refused(place: Path, victim: User, attacker: User) -> None:
    theirs = attacker.owns(place / "theirs", 0o1777)
    (mine := theirs / "share").mkdir()
    os.chown(mine, victim.uid, victim.uid)
    mine.chmod(0o700)
    ended = victim.observatory("show", env={"XDG_DATA_HOME": str(mine)})
    assert ended.returncode == 2, ended.stderr
    assert f"could be replaced: {theirs} belongs to another user; set HOME or XDG_DATA_HOME" in ended.stderr
    assert list(mine.iterdir()) == []


def test_a_data_folder_behind_another_users_link_is_refused(place: Path, victim: User, attacker: User) -> None:
    home = victim.owns(place / "home", 0o1777)
    target = victim.owns(place / "target")
    (home / ".local").symlink_to(target)
    os.lchown(home / ".local", attacker.uid, attacker.uid)
    ended = victim.observatory("run", "single", *SMALL, env={"HOME": str(home)})
    assert ended.returncode == 2, ended.stderr
    assert f"{home / '.local'} belongs to another user" in ended.stderr
    assert list(target.iterdir()) == []


def test_a_user_without_a_home_is_asked_for_one(victim: User) -> None:
    ended = victim.run(["env", "-u", "HOME", sys.executable, "-P", "-m", "bench", "show"])
    assert ended.returncode == 2, ended.stderr
    assert "set HOME or XDG_DATA_HOME to a folder of your own" in ended.stderr


def test_a_log_that_another_user_put_beside_a_store_is_not_taken_in(place: Path, victim: User, attacker: User) -> None:
    store = place / "history.sqlite"
    place.chmod(0o1777)
    ended = victim.observatory("show", "--store", f"sqlite:///{store}", "--runs", str(victim.home / "runs"))
    assert ended.returncode in (0, 4), ended.stderr
    with sqlite3.connect(store) as made:
        made.execute("CREATE TABLE mine (x)")
    made.close()
    os.chown(store, victim.uid, victim.uid)
    for said in ("everybody may write in", "would read it; delete it"):
        ended = victim.observatory("show", "--store", f"sqlite:///{store}", "--runs", str(victim.home / "runs"))
        assert (ended.returncode, said in ended.stderr) == (4, True), ended.stderr
        place.chmod(0o775)  # Now of a group, whose members may have put something there before.
        (log := place / "history.sqlite-wal").write_bytes(b"theirs")
        os.chown(log, attacker.uid, attacker.uid)


@pytest.mark.parametrize("is_link", [True, False])
def test_no_suite_run_is_written_where_another_user_leads_it(
    is_link: bool, place: Path, victim: User, attacker: User
) -> None:
    runs = victim.owns(place / "runs", 0o1777)
    target = victim.owns(place / "target", 0o777)
    if is_link:
        (runs / "suites").symlink_to(target)
        os.lchown(runs / "suites", attacker.uid, attacker.uid)
    else:
        attacker.owns(runs / "suites", 0o777)
    ended = victim.observatory("suite", "run", "smoke", "--only", "extra", "--runs", str(runs), "--budget", "1s")
    assert ended.returncode == 4, ended.stderr
    reason = "is a link, but must be" if is_link else "and others may write it"
    assert reason in ended.stderr
    assert list(target.iterdir()) == list((runs / "suites").iterdir()) == []


def test_a_run_whose_files_others_may_have_written_enters_no_history(place: Path, victim: User, attacker: User) -> None:
    runs = victim.owns(place / "runs")
    runs.chmod(0o755)
    folder = victim.owns(runs / "old", 0o777)
    (folder / "case.json").write_text("{}")
    os.chown(folder / "case.json", attacker.uid, attacker.uid)
    ended = victim.observatory("show", "--runs", str(runs))
    assert ended.returncode == 0, ended.stderr
    assert f"other users can write to it; run `chmod -R go-w {folder}` if its files are yours" in ended.stderr


def test_a_link_in_place_of_a_runs_case_is_not_followed(place: Path, victim: User) -> None:
    folder = victim.owns(place / "run")
    (real := place / "real.json").write_text(json.dumps({"schema_version": 1}))
    (folder / "case.json").symlink_to(real)
    ended = victim.observatory("show", str(folder))
    assert ended.returncode == 2, ended.stderr
    assert "case.json cannot be read: it is a link, but must be a file" in ended.stderr
