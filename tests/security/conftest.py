"""The user who measures, and the one who attacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.users import User, two_users


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[User, User]]:
    """See `two_users`: the victim and the attacker, for all tests of a module."""
    with two_users() as pair:
        yield pair


@pytest.fixture
def victim(users: tuple[User, User]) -> User:
    """The user who measures."""
    return users[0]


@pytest.fixture
def attacker(users: tuple[User, User]) -> User:
    """The user who attacks."""
    return users[1]


def hand_over(path: Path, user: User) -> None:
    """Give a file, or a folder with all that is in it, to a user."""
    for one in (path, *path.rglob("*")):
        os.chown(one, user.uid, user.uid, follow_symlinks=False)
