"""Memory on CUDA: stretches of a step add up, a step frees all that it makes, and the documented table holds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.torch_versions.fake_cuda.law import CASES, HEADER, case_of, predicted_bytes
from workloads.cost_models.absent import Absent
from workloads.cost_models.cuda.model import CudaModel
from workloads.cost_models.cuda.peak import CONTEXT_BYTES, unallocated_bytes, whole_pass
from workloads.cost_models.cuda.sizes import Copies
from workloads.cost_models.cuda.tape import LiveBytes, Stretch, Tape
from workloads.cost_models.memory import Checkpoint
from workloads.cost_models.shape import Shape

DOCS = Path(__file__).parents[3] / "docs" / "cost_models" / "memory.md"
SHAPE = Shape(layers=3, width=64, heads=4, kv_heads=2, mlp_width=160, vocabulary=96, sequence=32, batch=2)
TOKENS, WIDTH, KEYS, INNER = 64, 64, 32, 160
MODEL = CudaModel(
    shape=SHAPE,
    sequences=2,
    positions=32,
    stream_bytes=4,
    product_bytes=2,
    gradient_bytes=4,
    copies="cached",
    is_efficient=False,
    checkpoint="none",
)


def _stretch(net: int, peak: int) -> Stretch:
    return Stretch(net=LiveBytes(activations=net), peak=LiveBytes(activations=peak))


def test_stretches_follow_each_other_from_where_the_first_ended() -> None:
    both = _stretch(3, 5).then(_stretch(-1, 4))
    assert (both.net.total, both.peak.total) == (2, 7)
    falling = _stretch(-3, 5).then(_stretch(1, 4))
    assert (falling.net.total, falling.peak.total) == (-2, 5)


@pytest.mark.parametrize("net", [-2, 0, 3])
def test_a_repeated_stretch_is_the_stretch_several_times(net: int) -> None:
    one = _stretch(net, 5)
    assert one.times(4) == Stretch().then(one, one, one, one)
    assert one.times(0) == Stretch()


def test_a_tape_knows_what_lived_at_its_peak() -> None:
    tape = Tape().make("a", 5).make("b", 7, "temporary").free("a").make("c", 1, "gradients")
    assert tape.stretch().peak == LiveBytes(activations=5, temporary=7)
    assert tape.stretch().net == LiveBytes(temporary=7, gradients=1)
    with pytest.raises(ValueError, match="b lives already"):
        tape.make("b", 1)
    with pytest.raises(KeyError):
        tape.free("a")


def test_a_block_under_autocast_keeps_what_its_backward_reads() -> None:
    streams = 4 * TOKENS * WIDTH * 2  # After attention, and after the MLP.
    scales = 4 * TOKENS * 2
    casts = 2 * TOKENS * WIDTH * 5  # Of each norm's output, by each of the five products that read it.
    # Queries, keys, values, the result of attention twice (by head and by token), and a sum for each query.
    attention = 2 * TOKENS * (WIDTH + 2 * KEYS + 2 * WIDTH) + 4 * TOKENS * SHAPE.heads
    mlp = 2 * TOKENS * INNER * 4  # Gate, its silu, up, and the product of these two.
    weights = 2 * SHAPE.block_parameters()
    assert MODEL.forward(0).net.total == streams + scales + casts + attention + mlp + weights


def test_a_checkpointed_block_keeps_its_result_and_autocasts_copies() -> None:
    full = replace(MODEL, checkpoint="full")
    assert full.forward(0).net.total == 4 * TOKENS * WIDTH + 2 * SHAPE.block_parameters()
    assert full.cached_bytes(3) == 3 * 2 * SHAPE.block_parameters()
    assert replace(full, checkpoint_every=2).cached_bytes(3) == 2 * SHAPE.block_parameters()


SETTINGS: tuple[tuple[int, int, Copies], ...] = ((4, 4, "none"), (4, 2, "cached"), (2, 2, "each"), (2, 2, "none"))
CHECKPOINTS: tuple[Checkpoint, ...] = ("none", "full", "selective")


@pytest.mark.parametrize(("setting", "checkpoint", "chunks"), list(product(SETTINGS, CHECKPOINTS, (1, 3))))
@pytest.mark.parametrize("tensor_ranks", [1, 2])
def test_a_step_frees_all_that_it_makes_but_gradients(
    setting: tuple[int, int, Copies], checkpoint: Checkpoint, chunks: int, tensor_ranks: int
) -> None:
    stream_bytes, product_bytes, copies = setting
    model = replace(
        MODEL,
        stream_bytes=stream_bytes,
        product_bytes=product_bytes,
        copies=copies,
        is_efficient=product_bytes == 4,
        checkpoint=checkpoint,
        loss_chunks=chunks if tensor_ranks == 1 else 1,
        tensor_ranks=tensor_ranks,
        is_stream_sharded=tensor_ranks > 1,
    )
    weights = SHAPE.layers * SHAPE.block_parameters() + 2 * SHAPE.vocabulary * SHAPE.width
    first, later = whole_pass(model, "new"), whole_pass(model, "added")
    assert first.net == LiveBytes(gradients=4 * weights // tensor_ranks)
    assert later.net == LiveBytes()


def test_no_cost_model_speaks_of_what_it_does_not_cover() -> None:
    compiled = case_of("single 1 1b bf16 8 compile=default")
    in_fp8 = case_of("single 1 1b bf16 8 weights=fp8")
    halved = case_of("zero_bubble 8 1b/16 bf16 32")
    for case in (compiled, in_fp8, halved):
        assert isinstance(case.spec().peak(case), Absent)


def test_what_the_allocator_does_not_count_is_estimated_apart() -> None:
    assert unallocated_bytes(0, communicators=0) == CONTEXT_BYTES
    assert unallocated_bytes(10**9, communicators=2) > unallocated_bytes(10**9, communicators=1)


def _rows() -> list[list[str]]:
    text = DOCS.read_text()
    table = text[text.index("\n".join(HEADER)) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_documented_table_is_that_of_the_script_and_within_half_a_percent() -> None:
    rows = _rows()
    assert [words for words, *_ in rows] == list(CASES)
    for words, predicted, allocated, difference in rows:
        assert predicted == f"{predicted_bytes(words) / 1e9:.3f}", words
        assert abs(float(difference)) <= 0.5, words
        assert abs(float(predicted) / float(allocated) - 1) <= 0.0051, words
