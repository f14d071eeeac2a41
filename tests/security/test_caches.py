"""Code that torch compiles for a user's ranks lies where no other user can write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.security.users import User

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

_READ = """
import json, os, sys
os.umask(int(sys.argv[1], 8))
from bench.engines.environment import private_caches
from bench.errors import InfrastructureFailed
try:
    variables, notices = private_caches(os.environ)
except InfrastructureFailed as error:
    variables, notices = {}, [str(error)]
print(json.dumps([variables, notices]))
"""
_NAMES = {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"}


def _caches(user: User, umask: str = "022", **variables: str) -> tuple[dict[str, str], list[str]]:
    said = user.python(_READ, umask, env=variables)
    assert said.returncode == 0, said.stderr
    caches, notices = json.loads(said.stdout)
    return caches, notices


@pytest.mark.parametrize("umask", ["000", "777"])
def test_the_folder_is_the_users_alone_whatever_the_umask(victim: User, umask: str) -> None:
    caches, notices = _caches(victim, umask, XDG_CACHE_HOME=str(victim.home / f"cache-{umask}"))
    assert (set(caches), notices) == (_NAMES, [])
    folder = victim.home / f"cache-{umask}" / "parallel-observatory" / "compiled"
    assert {Path(path).parent for path in caches.values()} == {folder}
    for path in (folder, *folder.parents[:2]):
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (victim.uid, 0o700)


def test_a_folder_that_another_user_made_first_is_not_used(victim: User, attacker: User) -> None:
    place = attacker.owns(victim.home.parent / "inductor", 0o777)
    caches, notices = _caches(victim, TORCHINDUCTOR_CACHE_DIR=str(place / "a"), TRITON_CACHE_DIR=str(place))
    assert caches.keys() == _NAMES
    assert not any(str(place) in path for path in caches.values())
    assert len(notices) == 2
    assert notices[0].startswith(
        f"TORCHINDUCTOR_CACHE_DIR is ignored because {place} belongs to another user; compiled"
    )


def test_a_link_that_another_user_may_turn_is_not_followed(victim: User, attacker: User) -> None:
    mine = victim.owns(victim.home / "mine")
    link = attacker.owns(victim.home.parent / "links", 0o755) / "link"
    link.symlink_to(mine)
    caches, (notice,) = _caches(victim, TRITON_CACHE_DIR=str(link))
    assert str(link) not in caches["TRITON_CACHE_DIR"]
    assert "belongs to another user" in notice


def test_a_users_own_private_folder_is_respected(victim: User) -> None:
    own = victim.owns(victim.home / "own")
    caches, notices = _caches(victim, TRITON_CACHE_DIR=str(own / "not-yet"))
    assert (set(caches), notices) == (_NAMES - {"TRITON_CACHE_DIR"}, [])


def test_in_a_home_that_another_may_write_nothing_is_kept(victim: User, attacker: User) -> None:
    home, temporary = victim.owns(victim.home / "open", 0o777), victim.owns(victim.home.parent / "temporary", 0o1777)
    home.chmod(0o777)
    place = temporary / f"parallel-observatory-{victim.uid}"
    environment = {"HOME": str(home), "XDG_CACHE_HOME": "", "TMPDIR": str(temporary)}
    caches, notices = _caches(victim, **environment)
    assert {Path(path).parent for path in caches.values()} == {place}
    assert notices == []
    for path in place.iterdir():
        path.rmdir()
    place.rmdir()
    attacker.owns(place, 0o777)
    caches, (notice,) = _caches(victim, **environment)
    assert caches == {}
    assert f"other users may write to {home}" in notice
    assert f"{place} belongs to another user; set TMPDIR to a folder of your own" in notice
