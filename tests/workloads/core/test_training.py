"""One optimizer step: accumulation, clipping, precision, compilation and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import no_phase
from workloads.core.data import Batches
from workloads.core.trainer import Trainer, gather_gradients, make_model
from workloads.spec import LIMITS, OptionValue, Precision


def make_trainer(setup: SmallSetup) -> Trainer:
    return Trainer(setup, make_model(setup), no_phase)


def first_batch(setup: SmallSetup) -> Tensor:
    return next(Batches(setup, data_rank=0, data_ranks=1))


def step_of(precision: Precision = "fp32", **options: OptionValue) -> tuple[Tensor, dict[str, Tensor], Trainer]:
    setup = small_setup(precision=precision, options=options)
    trainer = make_trainer(setup)
    return loss_of(trainer, first_batch(setup)), trainer.full_gradients(), trainer


def loss_of(trainer: Trainer, tokens_bs: Tensor) -> Tensor:
    loss = trainer.step(tokens_bs)
    assert loss is not None
    return loss


def norm_of(gradients: dict[str, Tensor]) -> float:
    return nn.utils.get_total_norm(list(gradients.values())).item()


@pytest.mark.parametrize("accumulate", [2, 4])
def test_accumulated_parts_make_the_gradient_of_the_whole_batch(accumulate: int) -> None:
    loss, gradients, _ = step_of()
    parts_loss, parts_gradients, _ = step_of(accumulate=accumulate)
    torch.testing.assert_close(parts_loss, loss)
    for name, gradient in gradients.items():
        assert (parts_gradients[name] - gradient).norm() <= 5e-6 * gradient.norm()


def test_clipping_limits_the_norm_and_keeps_the_direction() -> None:
    _, free, _ = step_of(clip=0.0)
    _, clipped, _ = step_of(clip=0.5)
    assert norm_of(free) > 0.5
    assert norm_of(clipped) == pytest.approx(0.5, rel=1e-4)
    for name, gradient in free.items():
        torch.testing.assert_close(clipped[name], gradient * (0.5 / norm_of(free)), rtol=1e-4, atol=1e-8)


def test_the_norm_is_that_of_the_whole_gradient_before_clipping() -> None:
    _, free, _ = step_of(clip=0.0)
    _, _, trainer = step_of(clip=0.5)
    norm = trainer.gradient_norm()
    assert norm is not None
    assert norm.item() == pytest.approx(norm_of(free), rel=1e-5)


def test_where_nothing_is_clipped_no_norm_is_computed() -> None:
    _, _, trainer = step_of(clip=0.0)
    assert trainer.gradient_norm() is None


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_fp16_gradients_are_read_and_clipped_unscaled(clip: float) -> None:
    _, gradients, _ = step_of(clip=clip)
    _, halves, _ = step_of("fp16", clip=clip)
    assert norm_of(halves) == pytest.approx(norm_of(gradients), rel=2e-3)


def test_fp16_skips_a_step_whose_gradients_overflow() -> None:
    setup = small_setup(precision="fp16")
    trainer = make_trainer(setup)
    tokens_bs = first_batch(setup)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    handle = next(trainer.model.parameters()).register_hook(lambda gradient: gradient * torch.inf)  # type: ignore[no-untyped-call]
    trainer.step(tokens_bs)
    torch.testing.assert_close(list(trainer.model.parameters()), before, rtol=0, atol=0)
    handle.remove()
    trainer.step(tokens_bs)
    assert not torch.equal(next(trainer.model.parameters()), before[0])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_weights_gradients_and_loss_are_fp32_in_every_precision(precision: Precision) -> None:
    loss, gradients, trainer = step_of(precision)
    assert loss.dtype is torch.float32
    assert {gradient.dtype for gradient in gradients.values()} == {torch.float32}
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}


def test_the_loss_is_a_detached_scalar() -> None:
    loss, _, _ = step_of(accumulate=2)
    assert loss.shape == ()
    assert not loss.requires_grad


def test_the_loss_falls() -> None:
    setup = small_setup(shape=replace(SMALL, layers=2, batch=16), options={"learning_rate": 3e-3})
    trainer, batches = make_trainer(setup), Batches(setup, data_rank=0, data_ranks=1)
    losses = [loss_of(trainer, next(batches)).item() for _ in range(30)]
    assert sum(losses[-5:]) / 5 < 0.9 * losses[0]


def test_each_microbatch_marks_its_phases_and_only_the_last_synchronises() -> None:
    marks: list[str] = []

    @contextmanager
    def note(name: str) -> Iterator[None]:
        marks.append(f"{name} (")
        yield
        marks.append(")")

    setup = small_setup(options={"accumulate": 2})
    trainer = Trainer(
        setup,
        make_model(setup),
        note,
        no_sync=lambda: note("no_sync"),
        after_backward=lambda: marks.append("after_backward"),
    )
    trainer.step(first_batch(setup))
    assert " ".join(marks) == (
        "optimizer ( ) no_sync ( forward ( ) backward ( ) ) forward ( ) backward ( after_backward ) optimizer ( )"
    )


def test_a_weight_without_gradient_is_named() -> None:
    model = nn.Linear(2, 2)
    model.weight.grad = torch.zeros(2, 2)
    with pytest.raises(RuntimeError, match="weight bias has no gradient"):
        gather_gradients(model)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script_method.* is deprecated", "ignore:The .grad attribute of a Tensor that is"
)
@pytest.mark.parametrize(("precision", "checkpoint"), [("fp32", "none"), ("fp32", "selective"), ("bf16", "full")])
def test_compiled_blocks_compute_what_eager_ones_do(precision: Precision, checkpoint: str) -> None:
    loss, gradients, trainer = step_of(precision, checkpoint=checkpoint)
    compiled_loss, compiled_gradients, compiled = step_of(precision, checkpoint=checkpoint, compile="default")
    limit = LIMITS[precision]
    torch.testing.assert_close(compiled_loss, loss, rtol=limit, atol=0)
    assert dict(compiled.model.named_parameters()).keys() == dict(trainer.model.named_parameters()).keys()
    for name, gradient in gradients.items():
        assert (compiled_gradients[name] - gradient).norm() <= limit * gradient.norm(), name
