"""Asks a Prometheus which of its targets show our series, and why the others do not."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, build_opener

from bench.errors import InfrastructureFailed, Misuse
from bench.serve.stack.files import JOB
from bench.serve.stack.passwords import authorization
from collectors.metrics.process import BUILD_INFO

_ANSWER_S = 30.0
_LOOK_S = 0.5
_LOOKS = "http://127.0.0.1:9090"
_SERIES_BY_TARGET = 'count by (job, instance) ({__name__=~"observatory_.+"})'
"""Recorded series do not count."""
_JOBS_OF_OURS = f"count by (job) (last_over_time({BUILD_INFO.name}[1d]))"
"""Jobs with a target that was one of our exporters within a day: each exporter shows its build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a Prometheus knows about a target.

    health: "up", "down", or "unknown" before the first scrape. error: the last scrape's, "" if it succeeded. series:
    how many of our series it shows. was_ours: whether a target of its job was one of our exporters within a day.
    """

    job: str
    address: str
    health: str
    error: str
    series: int
    was_ours: bool = False

    @property
    def missing(self) -> str | None:
        """Why it shows none of our series, and what to do; None if it shows some."""
        if self.series:
            return None
        name = f"target {self.address} (job {self.job})"
        if self.health == "up":
            return f"{name} answers, and shows no series of ours; is it an `observatory serve`?"
        why = self.error or "Prometheus has not scraped it yet"
        return f"{name} is missing: {why}; is `observatory serve` running there?"


def targets_of(url: str, password: str | None = None) -> list[Target]:
    """Return the targets of the Prometheus at this address, by job and address.

    password: that of the stack's own Prometheus.

    Raises:
        Misuse: the address is not http or https.
        InfrastructureFailed: nothing answers there, or something else than a Prometheus.
    """
    active = _ask(url, password, "/api/v1/targets", {"state": "active"})["activeTargets"]
    counted = {
        (series["metric"].get("job", ""), series["metric"].get("instance", "")): int(series["value"][1])
        for series in _ask(url, password, "/api/v1/query", {"query": _SERIES_BY_TARGET})["result"]
    }
    known = _ask(url, password, "/api/v1/query", {"query": _JOBS_OF_OURS})["result"]
    jobs = {series["metric"].get("job", "") for series in known}
    targets = [
        Target(
            job=(job := target["labels"].get("job", "")),
            address=(address := target["labels"].get("instance", "")),
            health=target["health"],
            error=" ".join(target["lastError"].split()),
            series=counted.get((job, address), 0),
            was_ours=job in jobs,
        )
        for target in active
    ]
    return sorted(targets, key=lambda target: (target.job, target.address))


def of_ours(targets: Sequence[Target]) -> list[Target]:
    """Return the targets that should show our series: those of our job, and of jobs in which a target does or did.

    If the Prometheus has no such job, these are all its targets.
    """
    jobs = {target.job for target in targets if target.series or target.was_ours or target.job == JOB}
    return [target for target in targets if not jobs or target.job in jobs]


def left_out(targets: Sequence[Target]) -> list[str]:
    """Return a line for each job that need not show our series, because none of our exporters was seen in it."""
    ours = {target.job for target in of_ours(targets)}
    others = Counter(target.job for target in targets if target.job not in ours)
    down = Counter(target.job for target in targets if target.health == "down")
    return [
        f"left out: job {job} ({number} target{'s' * (number != 1)}, {down[job]} down); nothing of ours answered there"
        " within a day"
        for job, number in others.items()
    ]


def targets_once_scraped(url: str, expected: Collection[str], *, password: str, limit_s: float) -> list[Target]:
    """Return the targets once each was scraped, with series of ours or without an answer, or after this time.

    password: see `targets_of`. expected: addresses that must be among the targets; a missing one is returned as a
    target that Prometheus does not know.

    Raises: as `targets_of`.
    """
    until_s = time.monotonic() + limit_s
    while True:
        targets = targets_of(url, password)
        unknown = set(expected) - {target.address for target in targets}
        is_whole = bool(targets) and not unknown
        # Expected targets answer by now, but their first scrape may have come earlier.
        is_scraped = all(
            target.series or (target.health == "down" and target.address not in expected) for target in targets
        )
        if time.monotonic() >= until_s or (is_whole and is_scraped):
            absent = "Prometheus does not know it"
            return [
                *targets,
                *(
                    Target(job=JOB, address=address, health="unknown", error=absent, series=0)
                    for address in sorted(unknown)
                ),
            ]
        time.sleep(_LOOK_S)


def _ask(url: str, password: str | None, path: str, fields: dict[str, str]) -> Any:
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        is_address = False
    if not is_address or parts.username is not None or parts.query or parts.fragment:
        raise Misuse(f"the Prometheus's address cannot be used; it looks like {_LOOKS}")
    request = Request(f"{url.rstrip('/')}{path}?{urlencode(fields)}")
    if password is not None:
        request.add_unredirected_header("Authorization", authorization(password))
    try:
        with build_opener().open(request, timeout=_ANSWER_S) as answer:
            document = json.load(answer)
        return document["data"]
    except HTTPError as error:
        error.close()
        if error.code == 401:
            raise InfrastructureFailed(
                f"{url} asks for a password; `observatory stack status` knows only its own stack's (--folder)"
            ) from None
        raise InfrastructureFailed(f"{url} answers {path} with status {error.code}; is it a Prometheus?") from None
    except (HTTPException, ValueError, KeyError, TypeError):
        raise InfrastructureFailed(f"{url} answers {path} unlike a Prometheus; is it one?") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or str(reason)
        raise InfrastructureFailed(f"{url}: no answer ({why.lower()}); is a Prometheus running there?") from None
