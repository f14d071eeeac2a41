"""Another user who may write in the folder of runs neither makes us write elsewhere, nor is judged as us."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.results.timelines import save_timeline
from bench.store.active_runs import FollowedFolders, run_folders
from bench.store.prune import Limits, plan
from bench.suite.folder import suite_run_folders
from tests.bench.made.fake_runs import ddp_summary
from tests.security.conftest import hand_over
from tests.security.users import User
from tests.support.timelines import timeline_of

TITLE = "echo this is the profile of the one who measures\n"


@pytest.fixture
def shared(victim: User) -> Iterator[Path]:
    """A folder of runs in which every user may make runs, like /tmp."""
    folder = Path(tempfile.mkdtemp(dir=victim.home.parent))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def profile(victim: User) -> Iterator[Path]:
    """A file of the victim's that no other may write, and that must stay as it is."""
    path = victim.home / ".profile"
    path.write_text(TITLE)
    os.chown(path, victim.uid, victim.uid)
    yield path
    assert path.read_text() == TITLE


def _planted(shared: Path, attacker: User, *links: str, to: Path) -> Path:
    """A run of the attacker's that nobody summarised yet, with links in place of files that a reader might write."""
    run = Path(ddp_summary(shared).folder)
    (run / "summary.json").unlink(missing_ok=True)
    for name in links:
        (run / name).symlink_to(to)
    hand_over(run, attacker)
    run.chmod(0o777)
    for path in run.iterdir():
        if not path.is_symlink():
            path.chmod(0o666)
    return run


@pytest.mark.slow
def test_a_planted_run_overwrites_nothing_and_enters_no_history(
    victim: User, attacker: User, shared: Path, profile: Path
) -> None:
    run = _planted(shared, attacker, "summary.part", ".summary.json.part", to=profile)
    before = sorted(run.iterdir())
    shown = victim.observatory("show", "--runs", str(shared), "--format", "csv")
    assert shown.returncode == 0, shown.stderr
    assert run.name not in shown.stdout
    assert "left out: 1 run of other users; --shared adds them to your history" in shown.stderr
    # Who trusts the others says so; even then nothing is written into what is theirs.
    asked = victim.observatory("show", "--rebuild", "--shared", "--runs", str(shared), "--format", "csv")
    assert run.name in asked.stdout, asked.stderr
    assert sorted(run.iterdir()) == before
    # And it is theirs to delete.
    pruned = victim.observatory("prune", "--keep-bytes", "0", "--runs", str(shared))
    assert (pruned.returncode, run.is_dir()) == (0, True), pruned.stderr


@pytest.mark.slow
def test_a_link_or_another_users_file_is_no_history(victim: User, attacker: User, shared: Path, profile: Path) -> None:
    (shared / "link.sqlite").symlink_to(victim.home / "made-by-the-link")
    (shared / "theirs.sqlite").touch(0o666)
    (shared / "theirs.sqlite").chmod(0o666)
    hand_over(shared / "link.sqlite", attacker)
    hand_over(shared / "theirs.sqlite", attacker)
    hand_over(Path(ddp_summary(shared).folder), victim)  # So that there is something to write.
    for name, reason in (
        ("link.sqlite", f"is a link of the user with uid {attacker.uid}"),
        ("theirs.sqlite", f"the file belongs to the user with uid {attacker.uid}"),
    ):
        store = f"sqlite:///{shared / name}"
        refused = victim.observatory("show", "--rebuild", "--runs", str(shared), "--store", store)
        assert (refused.returncode, refused.stdout) == (4, ""), refused.stderr
        (line,) = refused.stderr.splitlines()
        assert reason in line
    assert not (victim.home / "made-by-the-link").exists()


WRITES = """
import sys
from pathlib import Path
from collectors.files import open_to_append, replace_file
from collectors.sample_log import Follower, SampleLog
from bench.rank.evidence import EvidenceFile
from bench.suite.ledger import LedgerWriter

folder = Path(sys.argv[1])
for write in (
    lambda: replace_file(folder / "case.json", b"{}"),
    lambda: SampleLog(folder / "rank0.jsonl"),
    lambda: open_to_append(folder / "rank0.err"),
    lambda: EvidenceFile(folder, 0),
    lambda: LedgerWriter(folder),
):
    try:
        write()
        print("written")
    except Exception as error:
        print(str(error).rpartition("] ")[2])
"""
FILES = ("case.json", "rank0.jsonl", "rank0.err", "rank0.evidence.jsonl", "ledger.jsonl")


def test_nothing_is_written_into_the_folder_of_another(
    victim: User, attacker: User, shared: Path, profile: Path
) -> None:
    theirs = attacker.owns(shared / "theirs", 0o777)
    (shared / "link").symlink_to(victim.owns(victim.home / "own"))
    hand_over(shared / "link", attacker)
    reasons = {theirs: f"it belongs to the user with uid {attacker.uid}", shared / "link": "it is a link, but must"}
    for folder, reason in reasons.items():
        answers = victim.python(WRITES, str(folder)).stdout.splitlines()
        assert len(answers) == len(FILES)
        assert all(reason in answer for answer in answers), answers
    assert [*theirs.iterdir(), *(victim.home / "own").iterdir()] == []


def test_nothing_is_written_through_a_link_or_into_a_pipe_in_our_own_folder(
    victim: User, attacker: User, shared: Path, profile: Path
) -> None:
    """As an older version made it, which left the mode to a umask of 000."""
    for kind in ("link", "pipe"):
        folder = victim.owns(shared / kind, 0o777)
        for name in FILES:
            if kind == "link":
                (folder / name).symlink_to(profile)
            else:
                os.mkfifo(folder / name)
                (folder / name).chmod(0o666)
            os.chown(folder / name, attacker.uid, attacker.uid, follow_symlinks=False)
        replaced, *appended = victim.python(WRITES, str(folder)).stdout.splitlines()
        reason = "it is a link, but must be a file" if kind == "link" else "it is not a regular file"
        assert replaced == "written"  # In place of the link, which is not followed.
        assert len(appended) == len(FILES) - 1
        assert all(reason in answer for answer in appended), appended
        assert (folder / "case.json").read_text() == "{}"
        assert (folder / "case.json").stat().st_uid == victim.uid


SWAPS = """
import os, sys
folder, aside, link, over = sys.argv[1:]
while not os.path.exists(over):
    os.rename(folder, aside)
    os.rename(link, folder)
    os.rename(folder, link)
    os.rename(aside, folder)
"""
LOOPS = """
import sys, os
from pathlib import Path
from collectors.files import open_to_append, replace_file
folder = Path(sys.argv[1])
written = refused = 0
while min(written, refused) < 100:
    try:
        replace_file(folder / "summary.json", b"{}")
        os.close(open_to_append(folder / "rank0.jsonl"))
        written += 1
    except OSError:
        refused += 1
"""


def test_a_folder_that_becomes_a_link_between_look_and_open_leads_nowhere(
    victim: User, attacker: User, shared: Path
) -> None:
    """In a folder of runs without a sticky bit, where the attacker may rename what is the victim's."""
    shared.chmod(0o777)
    secret = victim.owns(victim.home / ".ssh")
    run = victim.owns(shared / "run")
    (shared / "link").symlink_to(secret)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    swaps = [SWAPS, str(run), str(shared / "aside"), str(shared / "link"), str(shared / "over")]
    with attacker.start([sys.executable, "-P", "-c", *swaps], **streams) as swapping:
        try:
            written = victim.python(LOOPS, str(run))  # Ends once it has written 100 times, and was refused 100 times.
        finally:
            (shared / "over").touch()
        _, errors = swapping.communicate(timeout=60)
    assert (swapping.returncode, written.returncode) == (0, 0), errors + written.stderr
    assert list(secret.iterdir()) == []
    assert {path.name for path in run.iterdir()} == {"summary.json", "rank0.jsonl"}


def test_a_window_of_the_profiler_is_not_written_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "trial0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="it is a link"):
        save_timeline(timeline_of([], rank=0, is_device=False), tmp_path / "run", 0)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_runs_of_others_are_followed_and_suite_runs_found_only_where_a_person_says_so(
    attacker: User, shared: Path
) -> None:
    """By root, whose folders these are, beside what the attacker put there."""
    for place in (shared / "own", shared / "theirs"):
        place.mkdir()
        (place / "case.json").write_text("{}")
    for place in (shared / "suites" / "own", shared / "suites" / "theirs"):
        place.mkdir(parents=True)
        (place / "ledger.jsonl").touch()
    (shared / "link").symlink_to(shared / "theirs")
    (shared / "suites" / "link").symlink_to(shared / "suites" / "theirs")
    for place in (shared / "theirs", shared / "suites" / "theirs"):
        hand_over(place, attacker)
    (shared / ".pruned-theirs").mkdir()
    hand_over(shared / ".pruned-theirs", attacker)
    assert [path.name for path in run_folders(shared)] == ["own"]
    assert [path.name for path in run_folders(shared, of_all_users=True)] == ["own", "theirs"]
    for of_all_users, names in ((False, {"own"}), (True, {"own", "theirs"})):
        followed = FollowedFolders(shared, of_all_users=of_all_users, stage=lambda _: "running")
        assert followed.running().keys() - {"suites"} == names
        found = suite_run_folders(shared, of_all_users=of_all_users)
        assert {path.name for path in found} == names
    assert plan(shared, None, Limits(keep_bytes=0), now_ns=0).leftovers == ()
