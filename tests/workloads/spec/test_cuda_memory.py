"""Memory on CUDA: stretches of a step add up, a step frees all that it makes, and the documented table holds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.torch_versions.fake_cuda.law import CASES, HEADER, case_of, predicted_bytes
from workloads.cost_models.absent import Absent
from workloads.cost_models.cuda.blocks import Gradients
from workloads.cost_models.cuda.model import CudaModel
from workloads.cost_models.cuda.peak import CONTEXT_BYTES, unallocated_bytes, whole_pass
from workloads.cost_models.cuda.sizes import Copies
from workloads.cost_models.cuda.tape import LiveBytes, Stretch, Tape
from workloads.cost_models.memory import Checkpoint
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.shape import Shape
from workloads.data_parallel.cost_model import top_k_temporary_bytes
from workloads.pipeline_parallel.cuda_peak import stage_on_cuda

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
GRADIENTS: tuple[Gradients, ...] = ("new", "added")
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


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_tied_table_has_one_gradient_which_waits_for_that_of_the_embedding(chunks: int) -> None:
    tied, table = replace(MODEL, shape=replace(SHAPE, is_tied=True), loss_chunks=chunks), SHAPE.vocabulary * SHAPE.width
    first, later = whole_pass(tied, "new"), whole_pass(tied, "added")
    assert first.net == LiveBytes(gradients=4 * (SHAPE.layers * SHAPE.block_parameters() + table))
    assert later.net == LiveBytes()


def test_sharded_states_of_a_tied_model_are_those_of_one_table() -> None:
    """Each rank keeps an eighth of weights, gradients and moments, and gathers the table once."""
    tied, apart = (case_of(f"fsdp 8 8b/4 bf16 8 checkpoint=full {word}".strip()) for word in ("tied", ""))
    table = tied.shape.vocabulary * tied.shape.width
    of_tied, of_apart = (case.spec().peak(case) for case in (tied, apart))
    assert isinstance(of_tied, Prediction)
    assert isinstance(of_apart, Prediction)
    assert of_apart.optimizer_bytes - of_tied.optimizer_bytes == 8 * table // 8 + 4
    # The rank's part in fp32, and the gathered table in bf16.
    assert of_apart.parameters_bytes - of_tied.parameters_bytes == 4 * table // 8 + 2 * table


# Attention by plain products, which keep all scores.


@pytest.mark.parametrize(("setting", "checkpoint"), list(product(SETTINGS, ("none", "full"))))
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_a_step_with_plain_products_frees_all_that_it_makes_but_gradients(
    setting: tuple[int, int, Copies], checkpoint: Checkpoint, kv_heads: int
) -> None:
    shape, (stream_bytes, product_bytes, copies) = replace(SHAPE, kv_heads=kv_heads), setting
    model = replace(
        MODEL,
        shape=shape,
        stream_bytes=stream_bytes,
        product_bytes=product_bytes,
        copies=copies,
        checkpoint=checkpoint,
        is_math=True,
    )
    weights = shape.layers * shape.block_parameters() + 2 * shape.vocabulary * shape.width
    assert whole_pass(model, "new").net == LiveBytes(gradients=4 * weights)
    assert whole_pass(model, "added").net == LiveBytes()


def test_plain_products_keep_all_scores_in_fp32_and_backward_makes_three_times_as_much() -> None:
    scores = 4 * TOKENS * SHAPE.sequence * SHAPE.heads
    by_products = replace(MODEL, is_math=True)
    kept = by_products.forward(0).net.total - MODEL.forward(0).net.total
    # Flash keeps queries, keys, values and its result in bf16, and a sum for each query; products keep queries, keys
    # and values in fp32, keys and values for each query head.
    flash = 2 * TOKENS * (WIDTH + 2 * KEYS + WIDTH) + 4 * TOKENS * SHAPE.heads
    assert kept == scores + 4 * TOKENS * 3 * WIDTH - flash
    longer = replace(by_products, shape=replace(SHAPE, sequence=512), positions=512)
    many = 4 * 2 * 512 * 512 * SHAPE.heads
    assert 3 * many < longer.backward(0, "new").peak.temporary < 3.1 * many


# Halves of a backward.


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("tensor_ranks", [1, 2])
def test_the_halves_of_a_backward_leave_what_a_whole_one_does(
    setting: tuple[int, int, Copies], stage: int, tensor_ranks: int
) -> None:
    stream_bytes, product_bytes, copies = setting
    model = replace(
        MODEL,
        stream_bytes=stream_bytes,
        product_bytes=product_bytes,
        copies=copies,
        is_efficient=product_bytes == 4,
        tensor_ranks=tensor_ranks,
    )
    own = stage_on_cuda(model, (1, 1, 1), stage)
    for gradients in GRADIENTS:
        halved = own.forward().then(own.input_half(), own.weight_half(gradients))
        assert halved.net == own.forward().then(own.backward(gradients, is_held=True)).net


def test_the_first_half_frees_only_the_logarithms_and_holds_the_gradients_that_weights_need() -> None:
    last = stage_on_cuda(MODEL, (1, 1), 1)
    held = 2 * TOKENS * (2 * WIDTH + WIDTH + 2 * KEYS + 2 * INNER)  # Of seven products' results.
    held += 3 * 4 * TOKENS * WIDTH  # Of three norms' outputs.
    held += 2 * TOKENS * SHAPE.vocabulary  # Of logits.
    sent = 4 * TOKENS * WIDTH
    logarithms, targets = 4 * TOKENS * SHAPE.vocabulary, 8 * TOKENS
    assert last.input_half().net == LiveBytes(temporary=held + sent, activations=-logarithms - targets)


def test_the_first_half_holds_a_ranks_part_of_what_ranks_divide() -> None:
    """Norms, and the products that end the halves of a block, have whole results; the logits' sum is divided."""
    last = stage_on_cuda(replace(MODEL, tensor_ranks=2), (1, 1), 1)
    held = 2 * TOKENS * (2 * WIDTH + (WIDTH + 2 * KEYS + 2 * INNER) // 2)
    held += 3 * 4 * TOKENS * WIDTH + 2 * TOKENS * SHAPE.vocabulary // 2
    sent = 4 * TOKENS * WIDTH
    assert last.input_half().net.temporary == held + sent


def test_the_first_stage_waits_for_its_weights_to_differentiate_at_all() -> None:
    first = stage_on_cuda(MODEL, (1, 1), 0)
    assert first.input_half() == Stretch()
    assert first.weight_half("new") == first.backward("new", is_held=True)


def test_a_server_takes_in_the_gradients_of_all_workers_or_of_one() -> None:
    together, alone = (
        predicted_bytes(f"parameter_server 9 1b/2 bf16 8 {words}") for words in ("", "mode=asynchronous")
    )
    weights = case_of("parameter_server 9 1b/2 bf16 8").shape.parameters()
    # Weights, gradients of the last step and of eight workers, and two moments.
    assert together == pytest.approx(4 * weights * (1 + 1 + 8 + 2), rel=1e-6)
    assert alone < together - 7 * 4 * weights + 10**9


# Compressed gradients.


def test_top_k_of_all_gradients_holds_the_largest_magnitudes_or_what_ranks_exchange() -> None:
    """A hundredth of each weight is kept, and at least one element."""
    shape = replace(SHAPE, layers=1, vocabulary=10_000)
    kept = sum(max(1, round(size / 100)) for size in (WIDTH, WIDTH, WIDTH)) + 2 * 6400
    for matrix in (WIDTH * WIDTH, WIDTH * KEYS, WIDTH * KEYS, WIDTH * WIDTH, *(3 * [WIDTH * INNER])):
        kept += round(matrix / 100)
    assert top_k_temporary_bytes(shape, 0.01, 2) == 4 * 640_000 + 4 * 6400 + 8 * kept
    assert top_k_temporary_bytes(shape, 0.01, 64) == kept * (5 * 8 + 4 + 8 + 64 * 8)


@pytest.mark.parametrize("words", ["compress=topk", "compress=powersgd", "compress=bf16"])
def test_compressing_all_gradients_at_once_needs_more_than_averaging_them(words: str) -> None:
    plain, compressed = (
        predicted_bytes(f"ddp 8 1b/4 bf16 8 overlap=false {each}") for each in ("compress=none", words)
    )
    weights = case_of("ddp 8 1b/4 bf16 8").shape.parameters()
    # Errors that are remembered, or a share of the gradients and its rounding.
    assert compressed - plain >= 4 * weights


def test_no_cost_model_speaks_of_what_it_does_not_cover() -> None:
    for words in (
        "single 1 1b bf16 8 compile=default",
        "single 1 1b bf16 8 weights=fp8",
        "single 1 1b bf16 8 attention=math checkpoint=selective",
        "ring_attention 4 1b/2 bf16 8 checkpoint=selective",
        "ulysses 4 1b/2 bf16 8 attention=math",
    ):
        case = case_of(words)
        assert isinstance(case.spec().peak(case), Absent), words


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
