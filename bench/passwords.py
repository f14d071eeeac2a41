"""Whether a name and a password belong together, where passwords are known by their bcrypt hashes only."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping

import bcrypt

_KEPT_ANSWERS = 100
"""Right ones, and as many wrong ones."""
_COUNTED_BYTES = 72
"""bcrypt takes no more of a password. Source: Provos and Mazieres 1999, A Future-Adaptable Password Scheme, 3."""


class Passwords:
    """Answers for any number of threads; hashes one password at a time, so that a guesser costs one core at most.

    Answers are kept, since a hash takes a tenth of a second and the same client asks every few seconds. Right ones are
    kept apart from wrong ones, so that no number of guesses pushes them out. Of what was asked only a fingerprint is
    kept, under a key that nobody knows.

    hashes: of at least one user, by name. matches: bcrypt's comparison of a password and a hash.
    """

    def __init__(self, hashes: Mapping[str, str], *, matches: Callable[[bytes, bytes], bool] = bcrypt.checkpw) -> None:
        self._hashes = {name.encode(): hashed.encode() for name, hashed in hashes.items()}
        # In place of a user who is none, so that the time taken does not tell who is one.
        self._decoy = max(self._hashes.values(), key=_cost)
        self._matches = matches
        self._key = secrets.token_bytes(32)
        self._answers: dict[bool, OrderedDict[bytes, None]] = {True: OrderedDict(), False: OrderedDict()}
        self._answers_lock = threading.Lock()
        self._hashing = threading.Lock()

    def admits(self, authorization: str) -> bool:
        """Whether the value of an Authorization header names a user and that user's password."""
        given = _credentials(authorization)
        if given is None:
            return False
        fingerprint = self._fingerprint(*given)
        with self._answers_lock:
            for is_right, kept in self._answers.items():
                if fingerprint in kept:
                    kept.move_to_end(fingerprint)
                    return is_right
        is_right = self._check(*given)
        with self._answers_lock:
            kept = self._answers[is_right]
            kept[fingerprint] = None
            while len(kept) > _KEPT_ANSWERS:
                kept.popitem(last=False)
        return is_right

    def _check(self, name: bytes, password: bytes) -> bool:
        hashed = self._hashes.get(name)
        with self._hashing:
            is_match = self._matches(password[:_COUNTED_BYTES], self._decoy if hashed is None else hashed)
        return is_match and hashed is not None

    def _fingerprint(self, name: bytes, password: bytes) -> bytes:
        # A name has no colon, so no two pairs read the same.
        return hashlib.blake2b(name + b":" + password, key=self._key).digest()


def _credentials(authorization: str) -> tuple[bytes, bytes] | None:
    """Name and password of HTTP's basic authentication; None where the header is of another kind.

    Source: RFC 7617, section 2.
    """
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


def _cost(hashed: bytes) -> bytes:
    """The two digits of a hash that say how long it takes."""
    return hashed.split(b"$")[2]
