"""A Summary as JSON: what comes back, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.errors import Misuse
from bench.rank.messages import FailureCause
from bench.results.mfu import Peak, peak_of
from bench.store.summary import SCHEMA_VERSION, decode, encode
from tests.bench.made.examples import make_summary


def test_a_summary_survives_json() -> None:
    summary = make_summary()
    assert decode(encode(summary)) == summary


def test_an_efficiency_that_was_stored_twice_is_read_once() -> None:
    summary = make_summary()
    assert decode(encode(replace(summary, scaling=summary.scaling * 2))) == summary


def test_a_summary_keeps_the_peak_behind_its_mfu() -> None:
    peak = peak_of("NVIDIA H200", "bf16")
    assert isinstance(peak, Peak)
    assert decode(encode(make_summary(peak=peak))).peak == peak


def test_a_failed_summary_survives_json_with_its_cause() -> None:
    cause = FailureCause(kind="killed", rank=1, step=3, text="ended by signal 9", last_lines=("Traceback",))
    summary = make_summary(outcome="failed", cause=cause, estimates=(), scaling=(), step_spread_ratio=None)
    assert decode(encode(summary)) == summary


def test_a_newer_summary_is_refused_although_its_form_is_unknown() -> None:
    data = b'{"schema_version": %d, "run": {"of": "another form"}}' % (SCHEMA_VERSION + 1)
    with pytest.raises(
        Misuse, match=r"runs/a/summary.json: written with schema version 2, .* up to 1; use the version"
    ):
        decode(data, "runs/a/summary.json")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"schema_version": 1}', b"\xff"])
def test_what_is_no_summary_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(Misuse, match="is not a summary") as refused:
        decode(data)
    assert "\n" not in str(refused.value)
