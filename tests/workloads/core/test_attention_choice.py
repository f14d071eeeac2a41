"""Which kernel a rank of a GPU attends with: by fakes of what torch says of it, and tensors without a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.workloads.core.test_attention_kernels import by_definition, draw
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.core.attention import (
    KERNELS,
    CpuFlash,
    CudaCudnn,
    CudaEfficient,
    CudaFlash,
    Example,
    Pinned,
    TorchAttention,
    attend_of,
    attention_notes,
    ring_kernel,
)
from workloads.core.transformer import SAVED, Block, Checkpoint, attend, rotary_tables
from workloads.cost_models.shape import Shape
from workloads.options import ATTENTION, KernelName, attention_refusals
from workloads.registry import spec_of
from workloads.spec import OptionValue, Precision

WIDE = Shape(layers=1, width=256, heads=4, kv_heads=2, mlp_width=64, vocabulary=64, sequence=32, batch=8)

META = torch.device("meta")


@dataclass
class FakeAttention(TorchAttention):
    """A GPU on which torch chooses this kernel, and can use these."""

    chosen: KernelName
    usable: tuple[KernelName, ...] = ("cudnn", "flash", "efficient", "math")
    seen: list[Example] = field(default_factory=list)
    device: torch.device = META

    def choice(self, example: Example) -> KernelName:
        self.seen.append(example)
        return self.chosen

    def can_use(self, kernel: KernelName, example: Example) -> bool:
        self.seen.append(example)
        return kernel in self.usable


def on_gpu(
    kernel: str = "auto", *, strategy: str = "single", precision: Precision = "bf16", shape: Shape = WIDE
) -> SmallSetup:
    options: dict[str, OptionValue] = {"attention": kernel}
    return small_setup(strategy, shape=shape, precision=precision, options=options, device="cuda", backend="nccl")


@pytest.mark.parametrize("kernel", ["cudnn", "flash", "efficient"])
def test_the_ring_takes_the_kernel_that_torch_would_choose(kernel: KernelName) -> None:
    chosen = ring_kernel(on_gpu(), positions=16, chunk=8, attention=FakeAttention(kernel))
    assert chosen.kernel is KERNELS[kernel]
    assert chosen.notes == (f"attention runs torch's kernel {kernel}; torch's choice on this GPU",)


def test_the_ring_asks_for_its_own_positions_with_the_fewest_keys() -> None:
    attention = FakeAttention("flash")
    ring_kernel(on_gpu(), positions=16, chunk=8, attention=attention)
    (example,) = attention.seen
    assert (example.q_bhqe.shape, example.k_bkte.shape) == ((1, 4, 16, 64), (1, 2, 8, 64))
    assert (example.q_bhqe.dtype, example.q_bhqe.device.type, example.is_causal) == (torch.bfloat16, "meta", False)
    assert example.q_bhqe.requires_grad


def test_the_ring_attends_by_another_kernel_where_torchs_gives_no_log_sum_exp_and_says_so() -> None:
    chosen = ring_kernel(on_gpu(precision="fp16"), positions=16, chunk=8, attention=FakeAttention("math"))
    assert isinstance(chosen.kernel, CudaEfficient)
    assert chosen.notes == (
        "attention runs torch's kernel efficient; other strategies run math, which returns no log-sum-exp: efficiency"
        " against them also compares kernels",
    )


def test_a_gpu_without_any_kernel_for_the_ring_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"^torch has no kernel on this GPU .* in bf16 for heads"):
        ring_kernel(on_gpu(), positions=16, chunk=8, attention=FakeAttention("math", usable=("math",)))


@pytest.mark.parametrize(("kernel", "kind"), [("cudnn", CudaCudnn), ("flash", CudaFlash), ("efficient", CudaEfficient)])
def test_a_named_kernel_is_that_of_the_ring_and_of_all_others(kernel: KernelName, kind: type) -> None:
    attention = FakeAttention("math")
    chosen = ring_kernel(on_gpu(kernel), positions=16, chunk=8, attention=attention)
    assert attend_of(on_gpu(kernel), attention) == Pinned(kernel=kernel)
    assert isinstance(chosen.kernel, kind)
    note = f"attention runs torch's kernel {kernel}; as the option attention says"
    assert chosen.notes == attention_notes(on_gpu(kernel), attention) == (note,)


def test_the_efficient_kernel_is_asked_for_with_a_copy_of_each_key_head() -> None:
    attention = FakeAttention("flash")
    attend_of(on_gpu("efficient"), attention)
    attend_of(on_gpu("flash"), attention)
    attention_notes(on_gpu(precision="fp32"), attention)
    assert [example.k_bkte.shape[1] for example in attention.seen] == [4, 2, 4]


def test_a_named_kernel_that_the_gpu_has_not_is_told() -> None:
    attention = FakeAttention("efficient", usable=("efficient", "math"))
    message = (
        "^option attention is flash, which torch cannot run on this GPU in fp16 with heads of 64 elements; leave it"
        " out, or use another kernel$"
    )
    with pytest.raises(RuntimeError, match=message):
        attend_of(on_gpu("flash", precision="fp16"), attention)
    with pytest.raises(RuntimeError, match=message):
        ring_kernel(on_gpu("flash", precision="fp16"), positions=16, chunk=8, attention=attention)


@pytest.mark.parametrize(
    ("kernel", "note"),
    [
        ("cudnn", "attention runs torch's kernel cudnn; torch's choice on this GPU"),
        (
            "math",
            "attention runs torch's kernel math; torch's choice on this GPU; ring_attention cannot use this kernel,"
            " and is compared with another",
        ),
    ],
)
def test_the_kernel_that_torch_chooses_is_told(kernel: KernelName, note: str) -> None:
    assert attention_notes(on_gpu(), FakeAttention(kernel)) == (note,)


def test_the_cpu_asks_nothing_and_tells_nothing() -> None:
    attention = FakeAttention("math")
    assert attend_of(small_setup(), attention) is attend
    assert attention_notes(small_setup(), attention) == ()
    chosen = ring_kernel(small_setup("ring_attention"), positions=16, chunk=8, attention=attention)
    assert isinstance(chosen.kernel, CpuFlash)
    assert (chosen.notes, attention.seen) == ((), [])


def test_torch_answers_for_tensors_of_the_cpu() -> None:
    """By the very calls that are made of a GPU's; but for cuDNN's, which would load that library."""
    q_bhqe, k_bkte, v_bkte = draw(12, 12, dtype=torch.float32)
    example = Example(q_bhqe=q_bhqe, k_bkte=k_bkte, v_bkte=v_bkte, is_causal=True)
    assert TorchAttention().choice(example) == "flash"
    asked: tuple[KernelName, ...] = ("flash", "efficient", "math")
    assert [TorchAttention().can_use(kernel, example) for kernel in asked] == [False, False, True]


@pytest.mark.parametrize("kernel", ["flash", "math"])
def test_a_pinned_kernel_attends_as_the_definition_says(kernel: KernelName) -> None:
    inputs = draw(12, 12)
    out_bhse = Pinned(kernel=kernel)(*inputs)
    torch.testing.assert_close(out_bhse, by_definition(*inputs, is_causal=True)[0])


def test_a_pinned_kernel_is_the_one_that_runs() -> None:
    for kernel, operator in (("math", "_safe_softmax"), ("flash", "flash_attention_for_cpu")):
        with SeenOperators() as seen:
            Pinned(kernel=kernel)(*draw(12, 12))  # type: ignore[arg-type]
        assert any(operator in name for name in seen.names)


@pytest.mark.parametrize("checkpoint", ["none", "full", "selective"])
def test_a_block_with_a_pinned_kernel_is_one_graph(checkpoint: Checkpoint) -> None:
    torch.manual_seed(0)
    block = Block(SMALL, checkpoint=checkpoint)
    tables = rotary_tables(SMALL)
    x_bsd = torch.randn(2, SMALL.sequence, SMALL.width, requires_grad=True)
    expected = torch.autograd.grad(block(x_bsd, *tables).sum(), x_bsd)
    block.attention.attend = Pinned(kernel="math")
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(x_bsd, *tables).sum(), x_bsd), expected)


@pytest.mark.parametrize("name", list(KERNELS))
def test_selective_checkpointing_keeps_what_each_kernel_gives(name: KernelName) -> None:
    with SeenOperators() as seen:
        q_bhqe = torch.empty(2, 4, 40, 64, dtype=torch.bfloat16, device="meta")
        KERNELS[name].forward(q_bhqe, q_bhqe, q_bhqe, is_causal=True)
    assert seen.names & {str(operator) for operator in SAVED}


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (
            small_setup(options={"attention": "math"}),
            "option attention is math on cpu, but it is a GPU kernel; leave it out, or use --device cuda",
        ),
        (
            on_gpu("flash", precision="fp32"),
            "option attention is flash in fp32, which this kernel does not support; use --precision bf16, or"
            " attention=efficient",
        ),
        (
            on_gpu("cudnn", shape=replace(WIDE, width=48)),
            "option attention is cudnn with width / heads 12; this kernel takes multiples of 8 up to 256: use such a"
            " --width for 4 heads, or attention=math",
        ),
        (
            on_gpu("efficient", precision="fp32", shape=replace(WIDE, width=24)),
            "option attention is efficient with width / heads 6; this kernel takes multiples of 4: use such a --width"
            " for 4 heads, or attention=math",
        ),
    ],
)
def test_a_kernel_that_cannot_attend_so_is_refused(setup: SmallSetup, message: str) -> None:
    assert list(attention_refusals(setup)) == [message]
    assert message in spec_of("single").all_refusals(setup)


@pytest.mark.parametrize("kernel", ATTENTION.choices)
def test_kernels_that_fit_are_not_refused(kernel: str) -> None:
    assert list(attention_refusals(on_gpu(kernel))) == []


def test_the_ring_refuses_the_kernel_without_log_sum_exp() -> None:
    (reason,) = spec_of("ring_attention").all_refusals(on_gpu("math", strategy="ring_attention"))
    assert reason.startswith("option attention is math, which returns no log-sum-exp")


class SeenOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives no types.
    """Keeps the names of all operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))
