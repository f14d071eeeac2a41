"""The card of `all_reduce`: the all-reduce algorithms of the textbook beside the library's own."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from workloads.cards.card import ELEMENT_BYTES, Backend, Card, Needs, Option, OptionValue, Parity, Setup
from workloads.laws.all_reduce import ALGORITHMS, Algorithm, refusal
from workloads.parts.collective_sizes import CHECK_BYTES, sweep

LARGEST_BYTES: Mapping[Backend, int] = {"gloo": 4 * 2**20, "nccl": 256 * 2**20}
FACTORS: Mapping[Backend, int] = {"gloo": 16, "nccl": 4}
"""By default. One algorithm wants room for the vectors of all other ranks, which 1 GiB would not leave on many."""


def chosen_algorithms(setup: Setup) -> list[Algorithm]:
    """The textbook's algorithms that the case asks for, each once and in the textbook's order.

    "all" are those that can run on the case's ranks.
    """
    names = _names(setup)
    if names == ["all"]:
        return [algorithm for algorithm in ALGORITHMS if refusal(algorithm, setup.ranks) is None]
    return [algorithm for algorithm in ALGORITHMS if algorithm in names]


def vector_sizes(setup: Setup) -> tuple[int, ...]:
    """Bytes of the vectors that are summed, ascending."""
    return sweep(int(setup.options["min_bytes"]), _largest(setup), _factor(setup))


def scratch_elements(algorithm: Algorithm, ranks: int, element_count: int) -> int:
    """Elements that a rank must have room for beside its vector, which has `element_count`."""
    match algorithm:
        case "sequential" | "recursive_doubling":
            return element_count
        case "ring":
            return -(-element_count // ranks)
        case "recursive_halving":
            return -(-element_count // 2)
        case "all_to_all" | "parameter_server":
            return (ranks - 1) * element_count


def scratch_elements_of_all(setup: Setup) -> int:
    """The most that any algorithm of the case needs for any of its vectors."""
    largest = vector_sizes(setup)[-1] // ELEMENT_BYTES[setup.precision]
    return max(scratch_elements(algorithm, setup.ranks, largest) for algorithm in chosen_algorithms(setup))


def _largest(setup: Setup) -> int:
    return int(setup.options["max_bytes"]) or LARGEST_BYTES[setup.backend]


def _factor(setup: Setup) -> int:
    return int(setup.options["factor"]) or FACTORS[setup.backend]


def _settled(setup: Setup) -> Mapping[str, OptionValue]:
    return {**setup.options, "max_bytes": _largest(setup), "factor": _factor(setup)}


def _names(setup: Setup) -> list[str]:
    return [name.strip() for name in str(setup.options["algorithms"]).split(",")]


def _mesh(setup: Setup) -> dict[str, int]:
    return {"data": setup.ranks}


def _refusals(setup: Setup) -> list[str]:
    return [*_size_refusals(setup), *_algorithm_refusals(setup)]


def _sends_messages(setup: Setup) -> bool:
    return True


def _size_refusals(setup: Setup) -> list[str]:
    least, most = int(setup.options["min_bytes"]), _largest(setup)
    element_bytes = ELEMENT_BYTES[setup.precision]
    reasons = []
    if _factor(setup) == 1:
        return ["option factor is 1, by which no size grows; it may be 0 or at least 2"]
    if least > most:
        reasons.append(f"option min_bytes is {least} and max_bytes {most}; min_bytes may be at most max_bytes")
    if odd := least % element_bytes:
        lower, upper = least - odd, least - odd + element_bytes
        fitting = f"{lower} or {upper}" if lower else str(upper)
        reasons.append(
            f"option min_bytes is {least}; an element in {setup.precision} has {element_bytes} bytes, so that"
            f" {fitting} would fit"
        )
    return reasons


def _algorithm_refusals(setup: Setup) -> list[str]:
    names = _names(setup)
    if names == ["all"]:
        return []
    reasons = []
    for name in names:
        if name not in ALGORITHMS:
            near = difflib.get_close_matches(name, ALGORITHMS, n=1, cutoff=0.5)
            offer = f'did you mean "{near[0]}"? ' if near else ""
            allowed = f"all, or some of {', '.join(ALGORITHMS)}"
            reasons.append(f'option algorithms is "{setup.options["algorithms"]}"; {offer}it may be {allowed}')
        elif (reason := refusal(ALGORITHMS[ALGORITHMS.index(name)], setup.ranks)) is not None:
            reasons.append(reason)
    return reasons


def _measurements(setup: Setup) -> int:
    return len(vector_sizes(setup)) * (1 + len(chosen_algorithms(setup)))


def _working_bytes(setup: Setup, rank: int) -> int:
    """The largest vector, what is received beside it, and the check; not what the library keeps for itself."""
    return vector_sizes(setup)[-1] + scratch_elements_of_all(setup) * ELEMENT_BYTES[setup.precision] + CHECK_BYTES


CARD = Card(
    name="all_reduce",
    kind="probe",
    summary="all-reduce as the textbook has it, algorithm by algorithm, beside the library's own",
    version=1,
    cuda_version=2,
    options=(
        Option(
            name="algorithms",
            default="all",
            help=f"beside the library's: {', '.join(ALGORITHMS)}, with commas between; all: those that the ranks allow"
            " (recursive ones want a power of two)",
        ),
        Option(name="min_bytes", default=1024, minimum=1, help="bytes of the smallest vector"),
        Option(
            name="max_bytes",
            default=0,
            minimum=0,
            help="bytes that no vector exceeds; 0: 4 MiB on gloo, 256 MiB on NCCL",
        ),
        Option(
            name="factor",
            default=0,
            minimum=0,
            help="from one vector's size to the next, 2 or more; 0: 16 on gloo, 4 on NCCL",
        ),
    ),
    needs=Needs(minimum_ranks=2),
    parity=Parity(kind="none", reason="a probe trains nothing"),
    mesh=_mesh,
    settled=_settled,
    refusals=_refusals,
    sends_messages=_sends_messages,
    measurements=_measurements,
    working_bytes=_working_bytes,
)
