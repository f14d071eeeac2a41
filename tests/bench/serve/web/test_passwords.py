"""A name and a password are right or wrong, and nothing else can be learnt by asking."""

from __future__ import annotations

import base64
import threading
from concurrent.futures import ThreadPoolExecutor

import bcrypt
import pytest

from bench.serve.web_config import Passwords

# From the tests of Openwall's crypt_blowfish; their passwords are in test_a_known_hash_admits_its_password_alone.
KNOWN = {
    "ann": "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW",
    "bob": "$2a$05$CCCCCCCCCCCCCCCCCCCCC.VGOzA784oUp/Z0DY336zx7pLYAy0lwK",
}


class FakeMatches:
    """Finds a password right where the hash ends in it; knows what it was asked, and whether twice at a time."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, bytes]] = []
        self.was_crowded = False
        self._room = threading.Lock()

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        is_alone = self._room.acquire(blocking=False)
        self.was_crowded |= not is_alone
        threading.Event().wait(0.005)
        self.asked.append((password, hashed))
        if is_alone:
            self._room.release()
        return hashed.endswith(password)


def _basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_a_known_hash_admits_its_password_alone() -> None:
    passwords = Passwords(KNOWN)
    given = [(name, word) for name in ("ann", "bob", "eve") for word in ("U*U", "U*U*", "")]
    assert [pair for pair in given if passwords.admits(_basic(*pair))] == [("ann", "U*U"), ("bob", "U*U*")]


@pytest.mark.parametrize("prefix", ["2a", "2b", "2y"])
def test_hashes_of_each_tool_are_understood(prefix: str) -> None:
    hashed = bcrypt.hashpw(b"word", bcrypt.gensalt(4)).decode().replace("$2b$", f"${prefix}$")
    assert Passwords({"ann": hashed}).admits(_basic("ann", "word"))


@pytest.mark.parametrize("password", ["with:colons:", "", "\u00fcml\u00e4ut \u6f22", "x" * 100])
def test_a_password_may_be_any_text(password: str) -> None:
    hashed = bcrypt.hashpw(password.encode()[:72], bcrypt.gensalt(4)).decode()
    passwords = Passwords({"ann": hashed})
    assert passwords.admits(_basic("ann", password))
    assert not passwords.admits(_basic("ann", f"y{password}"))


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic !!!", "Basic " + base64.b64encode(b"ann").decode(), "Bearer YW5uOlUqVQ=="]
)
def test_what_is_no_basic_authentication_is_refused_without_a_hash(header: str) -> None:
    matches = FakeMatches()
    assert not Passwords(KNOWN, matches=matches).admits(header)
    assert matches.asked == []


def test_the_scheme_may_be_written_in_any_case() -> None:
    assert Passwords(KNOWN).admits(_basic("ann", "U*U").replace("Basic", "bAsIc"))


def test_the_right_password_is_hashed_once_and_a_wrong_one_each_time() -> None:
    matches = FakeMatches()
    passwords = Passwords({"ann": "$2b$05$word"}, matches=matches)
    answers = [passwords.admits(_basic("ann", word)) for word in ("word", "else") * 3]
    assert answers == [True, False] * 3
    assert [password for password, _ in matches.asked] == [b"word", b"else", b"else", b"else"]


def test_the_answers_of_one_user_are_not_anothers() -> None:
    passwords = Passwords({"ann": "$2b$05$a", "bob": "$2b$05$b"}, matches=FakeMatches())
    assert passwords.admits(_basic("ann", "a"))
    assert not passwords.admits(_basic("bob", "a"))


def test_a_guesser_does_not_make_it_forget_who_asks_all_the_time() -> None:
    matches = FakeMatches()
    passwords = Passwords({"ann": "$2b$05$word"}, matches=matches)
    for number in range(150):
        passwords.admits(_basic("ann", f"guess{number}"))
        assert passwords.admits(_basic("ann", "word"))
    assert [password for password, _ in matches.asked].count(b"word") == 1


def test_a_user_who_is_none_takes_as_long_as_the_slowest_and_is_never_right() -> None:
    matches = FakeMatches()
    passwords = Passwords({"ann": "$2b$04$quick", "bob": "$2b$12$slow"}, matches=matches)
    assert not passwords.admits(_basic("eve", "slow"))
    assert matches.asked == [(b"slow", b"$2b$12$slow")]


def test_one_password_is_hashed_at_a_time() -> None:
    matches = FakeMatches()
    passwords = Passwords({"ann": "$2b$05$word"}, matches=matches)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: passwords.admits(_basic("ann", str(number))), range(16)))
    assert len(matches.asked) == 16
    assert not matches.was_crowded


def test_no_number_of_wrong_guesses_has_a_right_password_hashed_again() -> None:
    matches = FakeMatches()
    passwords = Passwords({"ann": "$2a$05$word"}, matches=matches)
    assert passwords.admits(_basic("ann", "word"))
    assert not any(passwords.admits(_basic("ann", f"guess {number}")) for number in range(150))
    asked = len(matches.asked)
    assert passwords.admits(_basic("ann", "word"))
    assert len(matches.asked) == asked
