"""Bandwidths against nccl-tests' own definitions, and against what backends really send."""

from __future__ import annotations

from fractions import Fraction
from typing import get_args

import pytest

from workloads.cost_models.communication import (
    Link,
    bus_factor,
    collective_time_s,
    wire_factor,
)
from workloads.cost_models.terms import Collective

COLLECTIVES: tuple[Collective, ...] = get_args(Collective)


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", Fraction(7, 4)),
        ("all_gather", Fraction(7, 8)),
        ("reduce_scatter", Fraction(7, 8)),
        ("all_to_all", Fraction(7, 8)),
        ("gather", Fraction(7, 8)),
        ("scatter", Fraction(7, 8)),
        ("broadcast", Fraction(1)),
        ("reduce", Fraction(1)),
        ("send", Fraction(1)),
    ],
)
def test_eight_ranks_have_the_factor_of_nccl_tests(collective: Collective, factor: Fraction) -> None:
    assert bus_factor(collective, 8) == factor


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_has_a_bus_bandwidth_of_0_unless_the_factor_is_1_for_all(collective: Collective) -> None:
    expected = 1 if collective in ("broadcast", "reduce", "send") else 0
    assert bus_factor(collective, 1) == expected


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_nccls_rings_send_what_the_definition_says(collective: Collective, ranks: int) -> None:
    assert wire_factor(collective, ranks, "nccl") == bus_factor(collective, ranks)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_gloo_never_sends_less_than_the_definition_says(collective: Collective, ranks: int) -> None:
    assert wire_factor(collective, ranks, "gloo") >= bus_factor(collective, ranks)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_bus_bandwidth_of_a_ring_is_its_links(collective: Collective, ranks: int) -> None:
    elapsed_s = collective_time_s(collective, 24_000_000, ranks, Link(bandwidth_bytes_per_second=50e9), "nccl")
    assert 24_000_000 / elapsed_s * float(bus_factor(collective, ranks)) == pytest.approx(50e9)


def test_a_published_line_of_nccl_tests_comes_out() -> None:
    # 72 ranks, all_reduce of 8 GiB in 20299 us: 423.16 GB/s by the algorithm, 834.57 GB/s on the bus.
    algorithm_bandwidth = 8_589_934_592 / 20_299e-6
    assert algorithm_bandwidth == pytest.approx(423.16e9, rel=1e-4)
    assert algorithm_bandwidth * float(bus_factor("all_reduce", 72)) == pytest.approx(834.57e9, rel=1e-4)


def test_no_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="ranks is 0; it must be 1 or more"):
        bus_factor("send", 0)
