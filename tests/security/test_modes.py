"""What we keep is for its user alone, whatever the umask; with --shared its group may read it."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.made.fake_runs import ddp_summary
from tests.security.conftest import hand_over
from tests.security.users import User

DATA = Path(".local/share/parallel-observatory")


@pytest.fixture
def data(victim: User) -> Iterator[Path]:
    """The victim's data folder, which does not exist yet."""
    yield victim.home / DATA
    shutil.rmtree(victim.home / ".local", ignore_errors=True)


def _with_umask(victim: User, umask: str, *words: str) -> str:
    """What our command prints under a umask; it ends well."""
    command = shlex.join([sys.executable, "-P", "-m", "bench", *words])
    done = victim.run(["sh", "-c", f"umask {umask}; exec {command}"])
    assert done.returncode == 0, done.stderr
    return done.stdout


def _modes(folder: Path) -> dict[str, int]:
    """The modes of a folder and of all that is in it, by path."""
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize("umask", ["000", "777"])
def test_a_history_and_a_summary_are_for_their_user_alone(victim: User, data: Path, tmp_path: Path, umask: str) -> None:
    run = Path(ddp_summary(tmp_path / "runs").folder)
    (run / "summary.json").unlink(missing_ok=True)
    own = shutil.copytree(run, victim.home / f"runs{umask}" / run.name)
    hand_over(own.parent, victim)
    own.chmod(0o700)
    _with_umask(victim, umask, "show", "--runs", str(own.parent))
    assert (own / "summary.json").stat().st_mode & 0o777 == 0o600
    assert _modes(data) == {".": 0o700, "history.sqlite": 0o600}


@pytest.mark.slow
@pytest.mark.parametrize(("umask", "words", "folder_mode"), [("000", (), 0o700), ("777", ("--shared",), 0o750)])
def test_a_whole_run_is_for_its_user_alone_or_for_the_group_to_read(
    victim: User, data: Path, umask: str, words: tuple[str, ...], folder_mode: int
) -> None:
    options = ["--ranks", "1", "--trials", "1", "--steps", "2", "--warm-up", "1", "--trace-steps", "1", "--port", "0"]
    _with_umask(victim, umask, "run", "ddp", *options, *words, "--quiet")
    (run,) = (data / "runs").iterdir()
    modes = _modes(run)
    assert {"case.json", "summary.json", "rank0.jsonl", "rank0.err", "trial0/rank0.timeline.npz"} <= modes.keys()
    for name, mode in modes.items():
        assert mode == (folder_mode if (run / name).is_dir() else folder_mode & 0o660), name
    assert _modes(data)["runs"] == folder_mode


def test_a_home_that_others_may_write_is_refused(victim: User, attacker: User, data: Path) -> None:
    victim.home.chmod(0o777)
    try:
        refused = victim.observatory("show")
    finally:
        victim.home.chmod(0o700)
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert f"HOME {victim.home} may be written by others (mode 777)" in line
    assert f"chmod go-w {victim.home}" in line
    assert not data.exists()


def test_a_data_folder_that_another_user_made_is_refused(victim: User, attacker: User, data: Path) -> None:
    """As in a container whose HOME is a folder that several share."""
    data.mkdir(parents=True)
    hand_over(data.parents[1], victim)
    hand_over(data, attacker)
    data.chmod(0o755)
    refused = victim.observatory("show")
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert f"the data folder {data} belongs to the user with uid {attacker.uid} and not to you" in line
