"""What a rank is asked to look at is refused where there would be nothing to see."""

from __future__ import annotations

import pytest

from bench.case import InstrumentationOptions, check_instrumentation
from bench.errors import Misuse
from tests.bench.made.examples import make_case


@pytest.mark.parametrize(
    "options",
    [
        InstrumentationOptions(),
        InstrumentationOptions(memory_snapshot=True),
        InstrumentationOptions(trace_every=1, memory_snapshot=True),
    ],
)
def test_options_that_fit_the_case_are_themselves(options: InstrumentationOptions) -> None:
    assert check_instrumentation(options, make_case(trace_steps=1)) is options


def test_windows_without_steps_between_them_are_refused_with_the_bound() -> None:
    with pytest.raises(Misuse, match="trace-every is 0; it must be 1 or more measured steps"):
        check_instrumentation(InstrumentationOptions(trace_every=0), make_case(trace_steps=1))


def test_windows_without_steps_in_them_are_refused_with_the_next_move() -> None:
    with pytest.raises(Misuse, match="trace-steps is 0; use --trace-steps 1 or more"):
        check_instrumentation(InstrumentationOptions(trace_every=5), make_case(trace_steps=0))


def test_memory_can_be_looked_at_without_a_window() -> None:
    assert check_instrumentation(InstrumentationOptions(memory_snapshot=True), make_case(trace_steps=0)).memory_snapshot
