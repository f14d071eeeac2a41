"""Specs of the probes `all_reduce`, `collectives`, `copies`, `matmul` and `pairs`: options, sizes, refusals, memory."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from workloads.cost_models.communication import (
    CHECK_BYTES,
    COLLECTIVES,
    Counts,
    counts,
    held_elements,
    least_bytes,
    sweep,
)
from workloads.cost_models.memory import INDEX_BYTES
from workloads.cost_models.terms import Collective, States
from workloads.probes.cost_model import ALGORITHMS, BUFFERS_TOUCHED, Algorithm, CopyKind, refusal
from workloads.spec import (
    ELEMENT_BYTES,
    Backend,
    Device,
    Needs,
    Option,
    OptionValue,
    Parity,
    Precision,
    Setup,
    StrategySpec,
    nearest_multiples,
)


class ProbeSpec(StrategySpec):
    """Base of the specs of probes, which have no model: all that describes training is empty."""

    kind = "probe"
    version = 1
    cuda_version = 2
    parity = Parity(kind="none", reason="a probe trains nothing")

    def states(self, setup: Setup, rank: int) -> States:
        return States(parameters_bytes=0, gradients_bytes=0, optimizer_bytes=0)


def _names(setup: Setup, option: str) -> list[str]:
    """Return the names that an option lists, with commas between."""
    return [name.strip() for name in str(setup.options[option]).split(",")]


def _nearest(name: str, known: Sequence[str]) -> str:
    """Return, as part of a message, the most similar known name; empty if none is similar."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.65)
    return f'did you mean "{near[0]}"? ' if near else ""


def _limit_refusals(least_bytes: int, most_bytes: int) -> list[str]:
    """Return why a sweep between these sizes is empty."""
    if least_bytes <= most_bytes:
        return []
    return [f"option min_bytes is {least_bytes} and max_bytes {most_bytes}; min_bytes must be at most max_bytes"]


def _broken_elements(size_bytes: int, precision: Precision) -> list[str]:
    """Return why option size_bytes is not a whole number of elements, and a value that is."""
    element_bytes = ELEMENT_BYTES[precision]
    if size_bytes % element_bytes == 0:
        return []
    fitting = size_bytes + element_bytes - size_bytes % element_bytes
    return [
        f"option size_bytes is {size_bytes}, which is not a multiple of {element_bytes}, the bytes of an element in"
        f" {precision}; {fitting} would fit"
    ]


# Probe `all_reduce`.

LARGEST_ALL_REDUCE_BYTES: Mapping[Backend, int] = {"gloo": 4 * 2**20, "nccl": 256 * 2**20}
FACTORS: Mapping[Backend, int] = {"gloo": 16, "nccl": 4}
"""Defaults. The largest vector is 256 MiB on NCCL because one algorithm needs room for the vectors of all other ranks;
with 1 GiB, many ranks would not have it."""


def chosen_algorithms(setup: Setup) -> list[Algorithm]:
    """Return the textbook algorithms of the case, each once and in the order of `ALGORITHMS`.

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
    """Return the elements that a rank needs room for, in addition to its vector of `element_count`."""
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
    if _factor(setup) == 1:
        return ["option factor is 1, with which sizes do not grow; it may be 0 or at least 2"]
    least, element_bytes = int(setup.options["min_bytes"]), ELEMENT_BYTES[setup.precision]
    reasons = _limit_refusals(least, _all_reduce_largest(setup))
    if least % element_bytes:
        fitting = nearest_multiples(least, element_bytes)
        reasons.append(
            f"option min_bytes is {least}, which is not a multiple of {element_bytes}, the bytes of an element in"
            f" {setup.precision}; {fitting} would fit"
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
    name = "all_reduce"
    summary = "textbook algorithms of all-reduce, each compared with the library's own"
    options = (
        Option(
            name="algorithms",
            default="all",
            help=f"one or more of {', '.join(ALGORITHMS)}, separated by commas; all: those that the number of ranks"
            " allows (recursive ones need a power of two)",
        ),
        Option(name="min_bytes", default=1024, minimum=1, help="bytes of the smallest vector"),
        Option(
            name="max_bytes",
            default=0,
            minimum=0,
            help="upper limit of a vector's bytes; 0: 4 MiB on gloo, 256 MiB on NCCL",
        ),
        Option(
            name="factor",
            default=0,
            minimum=0,
            help="ratio of a vector's size to the one before, 2 or more; 0: 16 on gloo, 4 on NCCL",
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
    """Return the collectives of the case, each once; "all" means those that can run on the case's ranks."""
    names = _names(setup, "collectives")
    if names == ["all"]:
        return [collective for collective in COLLECTIVES if setup.ranks >= _least_ranks(collective)]
    return [collective for collective in COLLECTIVES if collective in names]


def counted_sizes(setup: Setup, collective: Collective) -> list[Counts]:
    """Return the counts of each call of the sweep, ascending."""
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
        f"{collective} needs {_least_ranks(collective)} ranks and ranks is {setup.ranks}; use --ranks"
        f" {_least_ranks(collective)}, or leave it out"
        for collective in chosen_collectives(setup)
        if setup.ranks < _least_ranks(collective)
    ]
    return reasons


def _collectives_size_refusals(setup: Setup) -> list[str]:
    least = int(setup.options["min_bytes"])
    reasons = _limit_refusals(least, _collectives_largest(setup))
    needed = {
        collective: least_bytes(collective, setup.ranks, ELEMENT_BYTES[setup.precision])
        for collective in chosen_collectives(setup)
    }
    hungriest = max(needed, key=lambda collective: needed[collective], default=None)
    if hungriest is not None and least < needed[hungriest]:
        reasons.append(
            f"option min_bytes is {least}; {hungriest} in {setup.precision} on {setup.ranks} ranks moves nothing below"
            f" {needed[hungriest]} bytes; use min_bytes={needed[hungriest]} or more"
        )
    return reasons


class CollectivesSpec(ProbeSpec):
    name = "collectives"
    summary = "the library's collectives, at each size of a sweep, as nccl-tests measures them"
    options = (
        Option(
            name="collectives",
            default="all",
            help=f"one or more of {', '.join(COLLECTIVES)}, separated by commas; all: on one rank all but send",
        ),
        Option(name="min_bytes", default=1024, minimum=1, help="smallest size, as nccl-tests' -b"),
        Option(
            name="max_bytes",
            default=0,
            minimum=0,
            help="upper limit of sizes, as nccl-tests' -e; 0: 16 MiB on gloo, 1 GiB on NCCL",
        ),
        Option(name="factor", default=4, minimum=2, help="ratio of a size to the one before, as nccl-tests' -f"),
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
        """Return both buffers of the collective that needs most, and the check, without the library's own memory."""
        elements = [
            held_elements(collective, counts, rank)
            for collective in chosen_collectives(setup)
            for counts in counted_sizes(setup, collective)
        ]
        return max(elements, default=0) * ELEMENT_BYTES[setup.precision] + CHECK_BYTES


# Probe `copies`.

KINDS: Mapping[Device, tuple[CopyKind, ...]] = {
    "cpu": ("memory_copy", "memory_triad"),
    "cuda": ("device_copy", "host_to_device", "device_to_host", "host_to_device_pageable"),
}

SIZE_BYTES: Mapping[Device, int] = {"cpu": 256 << 20, "cuda": 1 << 30}
"""Defaults. STREAM requires at least four times the last cache: enough for 64 MiB on a CPU, 256 MiB on a GPU."""


def size_bytes(setup: Setup) -> int:
    """Return the bytes of one buffer."""
    return int(setup.options["size_bytes"]) or SIZE_BYTES[setup.device]


class CopiesSpec(ProbeSpec):
    name = "copies"
    summary = "memory bandwidth: copy and triad on a CPU; on CUDA within the GPU, and between host and GPU"
    options = (
        Option(
            name="size_bytes",
            default=0,
            minimum=0,
            help="bytes of a buffer, at least 4 times the last-level cache; 0: 256 MiB on the CPU, 1 GiB on CUDA",
        ),
    )

    def refusals(self, setup: Setup) -> list[str]:
        return _broken_elements(size_bytes(setup), setup.precision)

    def measurements(self, setup: Setup) -> int:
        return len(KINDS[setup.device])

    def working_bytes(self, setup: Setup, rank: int) -> int:
        """Return the buffers of one kind, because each kind frees its own: three for a triad, two for all others."""
        return max(2, *(BUFFERS_TOUCHED[kind] for kind in KINDS[setup.device])) * size_bytes(setup)


# Probe `matmul`.

LARGEST: Mapping[Device, int] = {"cpu": 1024, "cuda": 16384}
"""Defaults: large enough for the best rate of one CPU core, and for dozens of tiles per unit of a GPU."""


def sizes(setup: Setup) -> tuple[int, ...]:
    """Return the numbers of rows and columns of the square matrices, ascending."""
    rounded = []
    size, largest = int(setup.options["min_size"]), _matmul_largest(setup)
    while size <= largest:
        rounded.append(size)
        size *= int(setup.options["factor"])
    return tuple(rounded)


def _matmul_largest(setup: Setup) -> int:
    return int(setup.options["max_size"]) or LARGEST[setup.device]


class MatmulSpec(ProbeSpec):
    name = "matmul"
    summary = "FLOP/s of a device on square matrix products, by size, in the precision of the run"
    options = (
        Option(name="min_size", default=256, minimum=1, help="rows and columns of the smallest matrices"),
        Option(
            name="max_size",
            default=0,
            minimum=0,
            help=f"upper limit of rows and columns; 0: {LARGEST['cpu']} on the CPU, {LARGEST['cuda']} on CUDA",
        ),
        Option(name="factor", default=2, minimum=2, help="ratio of a size to the one before"),
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


# Probe `pairs`.

PAIR_BYTES: Mapping[Backend, int] = {"gloo": 4 * 2**20, "nccl": 64 * 2**20}
"""Defaults: large enough for the bandwidth of a socket, and of a network card that GPUs write to."""

Pair = tuple[int, int]


def pair_bytes(setup: Setup) -> int:
    """Return the bytes that each rank of a pair sends in a call."""
    return int(setup.options["size_bytes"]) or PAIR_BYTES[setup.backend]


def rounds(ranks: int, stride: int) -> list[list[Pair]]:
    """Return the pairs of a ring, grouped by round; no rank is in two pairs of a round.

    stride: distance of ranks that are neighbours; if it is the number of ranks of a node, each pair spans two nodes.
    Example: 4 ranks and stride 1 give [[(0, 1), (2, 3)], [(1, 2), (0, 3)]].
    """
    places = ranks // stride
    edges = [(place, place + 1) for place in range(places - 1)] + ([(0, places - 1)] if places > 2 else [])
    last = [edges.pop()] if places % 2 else []  # On an odd ring, the edge that closes it has no round with others.
    parts = [part for part in (edges[0::2], edges[1::2], last) if part]
    return [
        [(first * stride + lane, second * stride + lane) for first, second in part for lane in range(stride)]
        for part in parts
    ]


class PairsSpec(ProbeSpec):
    name = "pairs"
    summary = "bandwidth between neighbours on a ring of ranks or nodes, pair by pair, both ways at once"
    options = (
        Option(
            name="size_bytes",
            default=0,
            minimum=0,
            help="bytes that each rank of a pair sends in a call; 0: 4 MiB on gloo, 64 MiB on NCCL",
        ),
        Option(
            name="stride",
            default=1,
            minimum=1,
            help="distance between neighbouring ranks; with the number of ranks per node, each pair spans two nodes",
        ),
    )
    needs = Needs(minimum_ranks=2)

    def settled(self, setup: Setup) -> Mapping[str, OptionValue]:
        return {**setup.options, "size_bytes": pair_bytes(setup)}

    def refusals(self, setup: Setup) -> list[str]:
        stride = int(setup.options["stride"])
        reasons = _broken_elements(pair_bytes(setup), setup.precision)
        if setup.ranks % stride or setup.ranks // stride < 2:
            reasons.append(
                f"option stride is {stride} and ranks is {setup.ranks}; ranks may be {2 * stride}, {3 * stride},"
                f" {4 * stride} and so on"
            )
        return reasons

    def sends_messages(self, setup: Setup) -> bool:
        return True

    def measurements(self, setup: Setup) -> int:
        """Return the number of pairs that each rank is in."""
        return 1 if setup.ranks // int(setup.options["stride"]) == 2 else 2

    def working_bytes(self, setup: Setup, rank: int) -> int:
        """Return the sent and received values, and for the check the expected values, which are made as int64."""
        elements = pair_bytes(setup) // ELEMENT_BYTES[setup.precision]
        return 3 * pair_bytes(setup) + INDEX_BYTES * elements
