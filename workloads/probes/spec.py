"""Specs of the probes `all_reduce`, `collectives`, `copies` and `matmul`: options, sizes, refusals, memory."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from workloads.cost_models.collective_sizes import (
    CHECK_BYTES,
    COLLECTIVES,
    Counts,
    counts,
    held_elements,
    least_bytes,
    sweep,
)
from workloads.cost_models.terms import Collective, States
from workloads.probes.cost_model import ALGORITHMS, BUFFERS_TOUCHED, Algorithm, CopyKind, refusal
from workloads.spec import ELEMENT_BYTES, Backend, Device, Needs, Option, OptionValue, Parity, Setup, StrategySpec


class ProbeSpec(StrategySpec):
    """Base of the specs of probes, which have no model: what describes training is empty."""

    kind = "probe"
    cuda_version = 2
    parity = Parity(kind="none", reason="a probe trains nothing")

    def states(self, setup: Setup, rank: int) -> States:
        return States(parameters_bytes=0, gradients_bytes=0, optimizer_bytes=0)


def _names(setup: Setup, option: str) -> list[str]:
    """Return the names that an option lists, with commas between."""
    return [name.strip() for name in str(setup.options[option]).split(",")]


def _nearest(name: str, known: Sequence[str]) -> str:
    """Return, as part of a message, the known name that is most alike; nothing where none is."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f'did you mean "{near[0]}"? ' if near else ""


# Probe `all_reduce`.

LARGEST_ALL_REDUCE_BYTES: Mapping[Backend, int] = {"gloo": 4 * 2**20, "nccl": 256 * 2**20}
FACTORS: Mapping[Backend, int] = {"gloo": 16, "nccl": 4}
"""Defaults. The largest vector is 256 MiB on NCCL because one algorithm needs room for the vectors of all other ranks,
which 1 GiB would not leave on many."""


def chosen_algorithms(setup: Setup) -> list[Algorithm]:
    """Return the textbook algorithms that the case asks for, each once and in the order of `ALGORITHMS`.

    "all" means those that can run on the case's ranks.
    """
    names = _names(setup, "algorithms")
    if names == ["all"]:
        return [algorithm for algorithm in ALGORITHMS if refusal(algorithm, setup.ranks) is None]
    return [algorithm for algorithm in ALGORITHMS if algorithm in names]


def vector_sizes(setup: Setup) -> tuple[int, ...]:
    """Return the bytes of the vectors that are summed, ascending."""
    return sweep(int(setup.options["min_bytes"]), _all_reduce_largest(setup), _factor(setup))


def scratch_elements(algorithm: Algorithm, ranks: int, element_count: int) -> int:
    """Return the elements that a rank needs room for besides its vector, which has `element_count`."""
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
    """Return the most scratch elements that any algorithm of the case needs for any of its vectors."""
    largest = vector_sizes(setup)[-1] // ELEMENT_BYTES[setup.precision]
    return max(scratch_elements(algorithm, setup.ranks, largest) for algorithm in chosen_algorithms(setup))


def _all_reduce_largest(setup: Setup) -> int:
    return int(setup.options["max_bytes"]) or LARGEST_ALL_REDUCE_BYTES[setup.backend]


def _factor(setup: Setup) -> int:
    return int(setup.options["factor"]) or FACTORS[setup.backend]


def _all_reduce_size_refusals(setup: Setup) -> list[str]:
    least, most = int(setup.options["min_bytes"]), _all_reduce_largest(setup)
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
    names = _names(setup, "algorithms")
    if names == ["all"]:
        return []
    reasons = []
    for name in names:
        if name not in ALGORITHMS:
            allowed = f"all, or some of {', '.join(ALGORITHMS)}"
            reasons.append(
                f'option algorithms is "{setup.options["algorithms"]}"; {_nearest(name, ALGORITHMS)}it may be {allowed}'
            )
        elif (reason := refusal(ALGORITHMS[ALGORITHMS.index(name)], setup.ranks)) is not None:
            reasons.append(reason)
    return reasons


class AllReduceSpec(ProbeSpec):
    """Spec of the probe `all_reduce`."""

    name = "all_reduce"
    entry = "workloads.probes.all_reduce:probe"
    summary = "all-reduce as the textbook has it, algorithm by algorithm, beside the library's own"
    options = (
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
    )
    needs = Needs(minimum_ranks=2)

    def settled(self, setup: Setup) -> Mapping[str, OptionValue]:
        return {**setup.options, "max_bytes": _all_reduce_largest(setup), "factor": _factor(setup)}

    def refusals(self, setup: Setup) -> list[str]:
        return [*_all_reduce_size_refusals(setup), *_algorithm_refusals(setup)]

    def sends_messages(self, setup: Setup) -> bool:
        return True

    def measurements(self, setup: Setup) -> int:
        return len(vector_sizes(setup)) * (1 + len(chosen_algorithms(setup)))

    def working_bytes(self, setup: Setup, rank: int) -> int:
        """Return the largest vector, its scratch space and the check; the library's own memory is not counted."""
        return vector_sizes(setup)[-1] + scratch_elements_of_all(setup) * ELEMENT_BYTES[setup.precision] + CHECK_BYTES


# Probe `collectives`.

LARGEST_COLLECTIVES_BYTES: Mapping[Backend, int] = {"gloo": 16 * 2**20, "nccl": 2**30}
"""Defaults, where the link's bandwidth is reached: a socket's at some MiB, NVLink's beyond 256 MiB on 8 GPUs."""


def chosen_collectives(setup: Setup) -> list[Collective]:
    """Return the collectives that the case asks for, each once; "all" means those that can run on the case's ranks."""
    names = _names(setup, "collectives")
    if names == ["all"]:
        return [collective for collective in COLLECTIVES if setup.ranks >= _least_ranks(collective)]
    return [collective for collective in COLLECTIVES if collective in names]


def counted_sizes(setup: Setup, collective: Collective) -> list[Counts]:
    """Return what each call of the sweep moves, ascending."""
    sizes = sweep(int(setup.options["min_bytes"]), _collectives_largest(setup), int(setup.options["factor"]))
    return [counts(collective, size_bytes, setup.ranks, ELEMENT_BYTES[setup.precision]) for size_bytes in sizes]


def _collectives_largest(setup: Setup) -> int:
    return int(setup.options["max_bytes"]) or LARGEST_COLLECTIVES_BYTES[setup.backend]


def _least_ranks(collective: Collective) -> int:
    return 2 if collective == "send" else 1


def _name_refusals(setup: Setup) -> list[str]:
    names = _names(setup, "collectives")
    if names == ["all"]:
        return []
    reasons = []
    for name in names:
        if name not in COLLECTIVES:
            reasons.append(
                f'collective "{name}" is unknown; {_nearest(name, COLLECTIVES)}it may be of'
                f' {", ".join(COLLECTIVES)}, or "all" alone'
            )
    reasons += [
        f"{collective} goes to another rank and ranks is {setup.ranks}; take {_least_ranks(collective)} or leave it out"
        for collective in chosen_collectives(setup)
        if setup.ranks < _least_ranks(collective)
    ]
    return reasons


def _collectives_size_refusals(setup: Setup) -> list[str]:
    least, most = int(setup.options["min_bytes"]), _collectives_largest(setup)
    reasons = []
    if least > most:
        reasons.append(f"option min_bytes is {least} and max_bytes {most}; min_bytes may be at most max_bytes")
    needed = {
        collective: least_bytes(collective, setup.ranks, ELEMENT_BYTES[setup.precision])
        for collective in chosen_collectives(setup)
    }
    hungriest = max(needed, key=lambda collective: needed[collective], default=None)
    if hungriest is not None and least < needed[hungriest]:
        reasons.append(
            f"option min_bytes is {least}; {hungriest} in {setup.precision} on {setup.ranks} ranks moves nothing below"
            f" {needed[hungriest]}, which would do"
        )
    return reasons


class CollectivesSpec(ProbeSpec):
    """Spec of the probe `collectives`."""

    name = "collectives"
    entry = "workloads.probes.collectives:probe"
    summary = "the library's collectives, size by size, as nccl-tests measures them"
    options = (
        Option(
            name="collectives",
            default="all",
            help=f"{', '.join(COLLECTIVES)}, with commas between; all: on one rank all but send",
        ),
        Option(name="min_bytes", default=1024, minimum=1, help="size of the first, as nccl-tests' -b"),
        Option(
            name="max_bytes",
            default=0,
            minimum=0,
            help="size that none exceeds, as nccl-tests' -e; 0: 16 MiB on gloo, 1 GiB on NCCL",
        ),
        Option(name="factor", default=4, minimum=2, help="from one size to the next, as nccl-tests' -f"),
    )

    def settled(self, setup: Setup) -> Mapping[str, OptionValue]:
        return {**setup.options, "max_bytes": _collectives_largest(setup)}

    def refusals(self, setup: Setup) -> list[str]:
        return [*_name_refusals(setup), *_collectives_size_refusals(setup)]

    def sends_messages(self, setup: Setup) -> bool:
        return "send" in chosen_collectives(setup)

    def measurements(self, setup: Setup) -> int:
        return sum(len(counted_sizes(setup, collective)) for collective in chosen_collectives(setup))

    def working_bytes(self, setup: Setup, rank: int) -> int:
        """Return both buffers of the collective that needs most, and the check; not the library's own memory."""
        held = [
            held_elements(collective, counts, rank)
            for collective in chosen_collectives(setup)
            for counts in counted_sizes(setup, collective)
        ]
        return max(held, default=0) * ELEMENT_BYTES[setup.precision] + CHECK_BYTES


# Probe `copies`.

KINDS: Mapping[Device, tuple[CopyKind, ...]] = {
    "cpu": ("memory_copy", "memory_triad"),
    "cuda": ("device_copy", "host_to_device", "device_to_host", "host_to_device_pageable"),
}

SIZE_BYTES: Mapping[Device, int] = {"cpu": 256 << 20, "cuda": 1 << 30}
"""Defaults. STREAM asks for at least four times the last cache: enough for 64 MiB on a CPU, 256 MiB on a GPU."""


def size_bytes(setup: Setup) -> int:
    """Return the bytes of one buffer."""
    return int(setup.options["size_bytes"]) or SIZE_BYTES[setup.device]


class CopiesSpec(ProbeSpec):
    """Spec of the probe `copies`."""

    name = "copies"
    entry = "workloads.probes.device:probe_copies"
    summary = "bytes a second within memory (copy, triad; on CUDA the GPU's own) and between host and GPU"
    options = (
        Option(
            name="size_bytes",
            default=0,
            minimum=0,
            help="of one buffer, at least 4 times the last cache; 0: 256 MiB on the CPU, 1 GiB on CUDA",
        ),
    )

    def refusals(self, setup: Setup) -> list[str]:
        size, element = size_bytes(setup), ELEMENT_BYTES[setup.precision]
        if size % element == 0:
            return []
        whole = size + element - size % element
        return [
            f"option size_bytes is {size}, and {setup.precision} has {element} bytes an element; {whole} would hold"
            " whole elements"
        ]

    def measurements(self, setup: Setup) -> int:
        return len(KINDS[setup.device])

    def working_bytes(self, setup: Setup, rank: int) -> int:
        """Return the buffers of one kind, as each kind frees its own: three for a triad, two for all others."""
        return max(2, *(BUFFERS_TOUCHED[kind] for kind in KINDS[setup.device])) * size_bytes(setup)


# Probe `matmul`.

LARGEST: Mapping[Device, int] = {"cpu": 1024, "cuda": 16384}
"""Defaults: large enough for the best rate of one CPU core, and for dozens of tiles per unit of a GPU."""


def sizes(setup: Setup) -> tuple[int, ...]:
    """Return the numbers of rows and columns of the square matrices, ascending."""
    found = []
    size, largest = int(setup.options["min_size"]), _matmul_largest(setup)
    while size <= largest:
        found.append(size)
        size *= int(setup.options["factor"])
    return tuple(found)


def _matmul_largest(setup: Setup) -> int:
    return int(setup.options["max_size"]) or LARGEST[setup.device]


class MatmulSpec(ProbeSpec):
    """Spec of the probe `matmul`."""

    name = "matmul"
    entry = "workloads.probes.device:probe_matmul"
    summary = "FLOP/s that a device reaches on square matrix products, by size, at the given precision"
    options = (
        Option(name="min_size", default=256, minimum=1, help="rows and columns of the smallest matrices"),
        Option(
            name="max_size",
            default=0,
            minimum=0,
            help=f"largest that is measured; 0: {LARGEST['cpu']} on the CPU, {LARGEST['cuda']} on CUDA",
        ),
        Option(name="factor", default=2, minimum=2, help="from one size to the next"),
    )

    def refusals(self, setup: Setup) -> list[str]:
        least, largest = setup.options["min_size"], _matmul_largest(setup)
        if sizes(setup):
            return []
        origin = "" if setup.options["max_size"] else f", its default on {setup.device}"
        return [f"option min_size is {least} and max_size {largest}{origin}; max_size={least} would measure one size"]

    def measurements(self, setup: Setup) -> int:
        return len(sizes(setup))

    def working_bytes(self, setup: Setup, rank: int) -> int:
        """Return two factors and their product, of the largest size; a library's own workspace is not counted."""
        return 3 * max(sizes(setup), default=0) ** 2 * ELEMENT_BYTES[setup.precision]
