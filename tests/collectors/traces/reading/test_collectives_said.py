"""A collective is known by its own words, by those of the host that launched it, or by its name, in this order."""

from __future__ import annotations

import pytest

from collectors.traces.reading.collective_args import (
    CollectiveEvent,
    collectives,
    drop_impossible_args,
    elements_of,
)
from collectors.traces.reading.event_kinds import kinds
from collectors.traces.reading.raw_events import CollectiveArgs
from collectors.traces.timeline import ABSENT, Call
from tests.collectors.traces.made.raw import Row, raw_of

SAID = CollectiveArgs(
    collective="_allgather_base",
    dtype="BFloat16",
    given_elements=4,
    filled_elements=8,
    group="1",
    ranks="[2, 3]",
    sequence=7,
    external_id=50,
)
CALL = Call(collective="all_gather", group="1", ranks=(2, 3), dtype="bfloat16", given_elements=4, filled_elements=8)
KERNEL = Row("ncclDevKernel_SendRecv", "kernel", start_ns=100, end_ns=200, thread=20, correlation=9)
LAUNCH = Row("cudaLaunchKernel", "cuda_runtime", start_ns=14, end_ns=16, thread=5, correlation=9)


def _collectives(*rows: Row, groups: dict[str, tuple[int, ...]] | None = None) -> list[CollectiveEvent]:
    raw, _ = drop_impossible_args(raw_of(rows))
    return list(collectives(raw, kinds(raw)[0], groups or {}))


def _of_kernel(said: CollectiveArgs | None) -> Row:
    return Row(KERNEL.name, "kernel", start_ns=100, end_ns=200, thread=20, correlation=9, said=said)


def test_a_kernels_own_words_count() -> None:
    assert _collectives(_of_kernel(SAID)) == [CollectiveEvent(row=0, call=CALL, sequence=7)]


def test_what_a_kernel_leaves_out_its_operator_adds() -> None:
    kernel = _of_kernel(CollectiveArgs(collective="_allgather_base", external_id=50))
    operator = Row("record_param_comms", "cpu_op", said=SAID)
    assert _collectives(kernel, operator) == [CollectiveEvent(row=0, call=CALL, sequence=7)]


def test_without_words_of_its_own_the_operator_around_its_launch_speaks() -> None:
    operator = Row("record_param_comms", "cpu_op", start_ns=10, end_ns=20, thread=5, said=SAID)
    inner = Row("nccl:_all_gather_base", "user_annotation", start_ns=12, end_ns=18, thread=5)
    assert _collectives(KERNEL, LAUNCH, operator, inner) == [CollectiveEvent(row=0, call=CALL, sequence=7)]


def test_without_any_words_the_annotation_around_its_launch_names_it() -> None:
    silent = Row("record_param_comms", "cpu_op", start_ns=10, end_ns=20, thread=5)
    around = Row("nccl:all_to_all", "user_annotation", start_ns=12, end_ns=18, thread=5, shape="[[8, 4], [8]]")
    before = Row("nccl:all_reduce", "user_annotation", start_ns=11, end_ns=13, thread=5)
    elsewhere = Row("nccl:broadcast", "user_annotation", start_ns=13, end_ns=18, thread=6)
    call = Call(collective="all_to_all", given_elements=40)
    assert _collectives(KERNEL, LAUNCH, silent, around, before, elsewhere) == [CollectiveEvent(row=0, call=call)]


def test_an_annotation_that_says_nothing_leaves_the_kernels_name() -> None:
    around = Row("nccl:coalesced", "user_annotation", start_ns=12, end_ns=18, thread=5)
    reduce_ = Row("ncclDevKernel_AllReduce", "kernel", correlation=9)
    assert _collectives(reduce_, LAUNCH, around) == [CollectiveEvent(row=0, call=Call(collective="all_reduce"))]


def test_alone_a_kernel_is_what_its_name_says() -> None:
    assert _collectives(KERNEL) == [CollectiveEvent(row=0, call=Call(collective="send"))]


def test_an_event_of_gloo_tells_its_collective_and_its_size() -> None:
    gloo = Row("gloo:all_reduce", "user_annotation", shape="[[8, 8]]")
    assert _collectives(gloo) == [CollectiveEvent(row=0, call=Call(collective="all_reduce", given_elements=64))]


def test_ranks_that_are_not_all_written_are_those_of_the_group() -> None:
    words = CollectiveArgs(collective="allreduce", group="1", ranks="[0, 1, ..., 63]")
    (told,) = _collectives(_of_kernel(words), groups={"1": tuple(range(64))})
    assert told.call.ranks == tuple(range(64))
    (untold,) = _collectives(_of_kernel(words))
    assert untold.call.ranks == ()


@pytest.mark.parametrize(("dtype", "name"), [("Float", "float32"), ("Float8_e4m3fn", "float8_e4m3fn"), ("", None)])
def test_dtypes_have_torchs_names(dtype: str, name: str | None) -> None:
    (spoken,) = _collectives(_of_kernel(CollectiveArgs(collective="allreduce", dtype=dtype)))
    assert spoken.call.dtype == name


@pytest.mark.parametrize(
    ("said", "peer"),
    [
        (CollectiveArgs(collective="send", destination=3), 3),
        (CollectiveArgs(collective="recv", source=0), 0),
        (CollectiveArgs(collective="send"), None),
        (CollectiveArgs(collective="send", destination=-1), None),
        (CollectiveArgs(collective="send", source=0, destination=3), None),
    ],
)
def test_the_other_rank_of_a_message_is_its_peer(said: CollectiveArgs, peer: int | None) -> None:
    (spoken,) = _collectives(_of_kernel(said))
    assert spoken.call == Call(collective="send", peer=peer)


@pytest.mark.parametrize(
    ("said", "sequence"), [(-1, ABSENT), (0, 0), (2**63 - 1, 2**63 - 1), (2**63, ABSENT), (2**64 - 1, ABSENT)]
)
def test_a_sequence_that_no_column_holds_is_none(said: int, sequence: int) -> None:
    (spoken,) = _collectives(_of_kernel(CollectiveArgs(collective="send", sequence=said, group="")))
    assert (spoken.sequence, spoken.call.group) == (sequence, None)


@pytest.mark.parametrize(
    ("written", "size"), [(8, 8), (1, 1), (2**31 - 1, 2**31 - 1), (2**31, None), (0, None), (-1, None), (None, None)]
)
def test_the_size_of_a_group_is_what_a_world_can_have(written: int | None, size: int | None) -> None:
    (spoken,) = _collectives(
        _of_kernel(CollectiveArgs(collective="allreduce", ranks="[0, ..., 63]", group_size=written))
    )
    assert (spoken.call.ranks, spoken.call.group_size) == ((), size)


@pytest.mark.parametrize(
    ("shape", "elements"),
    [("[[2, 3], [4]]", 10), ("[[[2, 3], [4]], []]", 10), ("[[]]", None), ("[]", None), ("?", None), ("[[0, 3]]", 0)],
)
def test_elements_are_counted_over_all_tensors(shape: str, elements: int | None) -> None:
    assert elements_of(shape) == elements
