"""The strategy `deepspeed`: the reference model under the engine of DeepSpeed, with ZeRO's stages 0 to 3."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from workloads.core.attention_choice import attention_notes
from workloads.core.mesh import share_world_timeout
from workloads.core.trainer import AUTOCAST_TYPES, LearningRate, make_model, make_optimizer
from workloads.core.transformer import next_token_loss
from workloads.options import local_batch
from workloads.protocols import Phase, Workload
from workloads.spec import Backend, Device, Setup

# DeepSpeed in a rank that has met the others already: without its launcher, its compiled operators and its banners.
#
# What it wants of the environment is set here, and nowhere else. Does nothing when imported, and DeepSpeed is not.

DEPRECATED_CALLS = r"`torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"


def start(device: Device, backend: Backend) -> ModuleType:
    """The module `deepspeed`, which has taken over the process group that is there.

    device: the accelerator that it uses, where it would look for one by itself.
    """
    # The engine reads it in every step. A rank that has no GPU is the first of its kind.
    os.environ["LOCAL_RANK"] = str(torch.cuda.current_device() if device == "cuda" else 0)
    with _environment(DS_ACCELERATOR=device):
        deepspeed = import_module("deepspeed")
    # Beside what collectives need, it would compile an operator for inference on a CPU, by the compiler of the machine,
    # when it takes the group over. With none declared to be there, it uses torch's all_reduce.
    deepspeed.ops.__compatible_ops__ = {}
    _import_muon()
    # torch 2.13 has new names for what DeepSpeed calls in each step, also in autograd's threads.
    warnings.filterwarnings("ignore", DEPRECATED_CALLS, FutureWarning)
    deepspeed.init_distributed(dist_backend=backend, dist_init_required=False, verbose=False)
    return deepspeed


def _import_muon() -> None:
    """Load an optimizer that DeepSpeed compares ours with, without loading torch's compiler to compile its kernels."""
    with _environment(TORCHDYNAMO_DISABLE="1"):
        import_module("deepspeed.runtime.zero.muon.muon_optimizer")


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """These variables for the time of an import; those that stood before stand again after it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# Whole gradients from flat parts: what DeepSpeed's updates read, in the order of the weights.
#
# Dimensions: r ranks, e elements of a rank's part.

Layout = Literal["whole", "end_to_end", "each"]
"""How ranks share gradients: each has all; all are laid end to end and cut in equal parts; each is cut by itself."""


def unflatten(
    tensors: Sequence[Tensor],
    shapes: Mapping[str, torch.Size],
    layout: Layout,
    group: dist.ProcessGroup,
    device: torch.device,
) -> dict[str, Tensor]:
    """The gradient of each weight, by its name; all ranks of the group call it.

    tensors: what a rank holds, one after another; padding is at the end, or at the end of each.
    shapes: of the weights, in that order.
    device: where the group's ranks meet; offloaded parts lie elsewhere.
    """
    if layout == "whole":
        return dict(zip(shapes, tensors, strict=True))
    own = torch.cat([tensor.flatten() for tensor in tensors]).to(device)
    parts = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(parts, own, group=group)
    parts_re = torch.stack(parts)
    if layout == "end_to_end":
        sizes = [shape.numel() for shape in shapes.values()]
        pieces = torch.split(parts_re.flatten()[: sum(sizes)], sizes)
    else:
        widths = [-(-shape.numel() // group.size()) for shape in shapes.values()]
        pieces = tuple(columns_re.flatten() for columns_re in torch.split(parts_re, widths, dim=1))
    return {
        name: piece[: shape.numel()].view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


LAYOUTS: Mapping[int, Layout] = {0: "whole", 1: "end_to_end", 2: "end_to_end", 3: "each"}
"""How a stage's update divides the gradients that it reads among the ranks."""


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """The engine over all ranks, with our AdamW within."""
    return DeepSpeedTrainer(setup, mesh.get_group("data"), phase)


class DeepSpeedTrainer:
    """Trains as `parts.training.Trainer` does, by DeepSpeed's engine; a `Workload` of itself.

    The engine lets go of the gradients when it has updated. What its update read is kept until the next step begins, by
    which no step needs more memory: its peak is in backward.
    """

    def __init__(self, setup: Setup, group: dist.ProcessGroup, phase: Phase) -> None:
        model = make_model(setup)
        optimizer = make_optimizer(setup, model.parameters())
        self._weights = dict(model.named_parameters())
        self._shapes = {name: weight.shape for name, weight in self._weights.items()}
        self._layout = LAYOUTS[int(setup.options["stage"])]
        self._group, self._phase = group, phase
        self._device = torch.device(setup.device)
        self._accumulate = int(setup.options["accumulate"])
        self._learning_rate = LearningRate(setup)
        self._gradients: list[Tensor] = []
        optimizer.register_step_post_hook(self._keep_gradients)
        engine: Any = start(setup.device, setup.backend).initialize(
            model=model, optimizer=optimizer, config=settings(setup), dist_init_required=False
        )[0]
        # It meets in groups of its own.
        share_world_timeout(self._device)
        self._engine = engine
        self._notes = attention_notes(setup)
        self.model: nn.Module = engine
        self.optimizer: Optimizer = optimizer

    def step(self, tokens_bs: Tensor) -> Tensor:
        """See `Workload.step`."""
        with self._phase("optimizer"):
            self._gradients.clear()
            self._learning_rate.begin_step(self.optimizer)
        losses = []
        for microbatch_bs in tokens_bs.chunk(self._accumulate):
            with self._phase("forward"):
                logits_bsv = self._engine(microbatch_bs[:, :-1])
                loss = next_token_loss(logits_bsv, microbatch_bs[:, 1:])
            with self._phase("backward"):
                losses.append(self._engine.backward(loss).detach())
            with self._phase("optimizer"):
                self._engine.step()
        return torch.stack(losses).sum()

    def notes(self) -> Sequence[str]:
        """See `KnowsNotes`."""
        return self._notes

    def gradient_norm(self) -> float | None:
        """See `KnowsNorm`; stage 0 tells nobody."""
        norm = self._engine.get_global_grad_norm()
        return None if norm is None else float(norm)

    def full_gradients(self) -> dict[str, Tensor]:
        """See `Workload.full_gradients`; all ranks call it."""
        if not self._gradients:
            raise RuntimeError("weights have no gradient; the last step did not update them")
        return unflatten(self._gradients, self._shapes, self._layout, self._group, self._device)

    def held_tensors(self) -> dict[str, list[Tensor]]:
        """The training state that this rank holds, by part: DeepSpeed keeps most of it where no weight leads to it."""
        # Of what stage 3 has divided, a weight's own tensor is empty between steps.
        parts = [weight.ds_tensor for weight in self._weights.values() if hasattr(weight, "ds_tensor")]
        states = self.optimizer.state
        return {
            "parameters": [*self._weights.values(), *parts],
            "gradients": [*self._gradients, *self._accumulated()],
            # The weights that it updates are a copy, unless it updates the model's own.
            "optimizer": [*states, *(each for state in states.values() for each in state.values())],
        }

    def _accumulated(self) -> list[Tensor]:
        """Where stage 3 adds up its part of the gradients; it stays from step to step."""
        buffer = getattr(self._engine.optimizer, "grad_partitions_flat_buffer", None)
        return [] if buffer is None else [buffer]

    def _keep_gradients(self, optimizer: Optimizer, *_: object) -> None:
        """Called after each update, of which a stage may make several in a step."""
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        self._gradients += [weight.grad for weight in weights]


def settings(setup: Setup) -> dict[str, Any]:
    """DeepSpeed's configuration of this setup."""
    options = setup.options
    zero: dict[str, Any] = {
        "stage": int(options["stage"]),
        "overlap_comm": bool(options["overlap_comm"]),
        "reduce_bucket_size": int(options["reduce_bucket_size"]),
        "stage3_param_persistence_threshold": int(options["param_persistence_threshold"]),
        "stage3_max_reuse_distance": int(options["max_reuse_distance"]),
        "stage3_prefetch_bucket_size": int(options["prefetch_bucket_size"]),
    }
    if options["offload"]:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": setup.device == "cuda"}
    return {
        "train_micro_batch_size_per_gpu": local_batch(setup, setup.ranks),
        "gradient_accumulation_steps": int(options["accumulate"]),
        "gradient_clipping": float(options["clip"]),
        "zero_optimization": zero,
        "torch_autocast": _autocast(setup),
        # Our AdamW is torch's, on the host too; DeepSpeed's own would have to be compiled.
        "zero_force_ds_cpu_optimizer": False,
        # It would wait for the GPU at both ends of each step.
        "timers": {"throughput": {"enabled": False}},
        "steps_per_print": sys.maxsize,
    }


def _autocast(setup: Setup) -> dict[str, Any]:
    """Weights stay in fp32 and products round, as in every strategy: with weights in bf16, it would be another model.

    DeepSpeed would also round the gradients of linear layers on their way; without modules that it may do so with,
    they travel in fp32, as those of other strategies.
    """
    dtype = AUTOCAST_TYPES.get(setup.precision)
    if dtype is None:
        return {"enabled": False}
    return {"enabled": True, "dtype": str(dtype).removeprefix("torch."), "lower_precision_safe_modules": []}
