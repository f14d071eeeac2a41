"""Requests of a push to a Grafana, and the errors with which it can end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Sends requests to one Grafana. url: its API's. send: takes verb, path and body, and returns the answer's JSON.

    Raises:
        PublishFailed: it did not answer, or refused.
    """

    url: str
    send: Callable[[str, str, dict[str, Any] | None], Any]

    def __call__(self, verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the answer to a request."""
        return self.send(verb, path, body)


class PublishFailed(RuntimeError):
    """The Grafana could not be reached, refused, or gave no valid answer. status: the answer's, if any."""

    def __init__(self, text: str, *, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class NotThere(PublishFailed):
    """Grafana does not have the requested object."""


class PushRefused(RuntimeError):
    """Nothing was pushed, because it would undo what others did. reasons: each names one object and the next step."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


def find(ask: Ask, path: str, key: str) -> dict[str, Any] | None:
    """Return the object at the path, or None.

    Raises:
        PublishFailed: the answer lacks the key, so it does not come from a Grafana.
    """
    try:
        answer = ask("GET", path)
    except NotThere:
        return None
    if not isinstance(answer, dict) or key not in answer:
        raise PublishFailed(f"GET {ask.url}{path}: the answer has no {key} in it; is this a Grafana?")
    return answer
