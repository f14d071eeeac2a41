"""Strategy `deepspeed`: the reference model under DeepSpeed's engine, with ZeRO's stages 0 to 3.

DeepSpeed is imported only by `start`, without its launcher, its compiled operators and its banners.
"""

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

from workloads.core.attention import attention_notes
from workloads.core.mesh import share_world_timeout
from workloads.core.trainer import (
    AUTOCAST_TYPES,
    LearningRate,
    fill_tables,
    make_model,
    make_optimizer,
    outline_model,
)
from workloads.core.transformer import Transformer, next_token_loss
from workloads.core.weights import fill_flat
from workloads.options import local_batch
from workloads.protocols import Phase, Workload
from workloads.spec import Backend, Device, Setup

# Starting DeepSpeed in a rank whose process group exists. The environment variables that it needs are set only here.

DEPRECATED_CALLS = r"`torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"


def start(device: Device, backend: Backend) -> ModuleType:
    """Import the module `deepspeed`, and let it use the existing process group.

    device: the accelerator to use; by default DeepSpeed would look for one.
    """
    # The engine reads it in every step; a rank without a GPU takes 0.
    os.environ["LOCAL_RANK"] = str(torch.cuda.current_device() if device == "cuda" else 0)
    with _environment(DS_ACCELERATOR=device):
        deepspeed = import_module("deepspeed")
    # When it takes the group, DeepSpeed would compile an operator for inference on a CPU with the machine's compiler;
    # these collectives do not need it. With no operator declared compatible, it uses torch's all_reduce.
    deepspeed.ops.__compatible_ops__ = {}
    # DeepSpeed compares the optimizer with this one. Import it without torch's compiler, which would compile its
    # kernels.
    with _environment(TORCHDYNAMO_DISABLE="1"):
        import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    # In each step, including in autograd's threads, DeepSpeed calls functions that torch 2.13 has renamed.
    warnings.filterwarnings("ignore", DEPRECATED_CALLS, FutureWarning)
    deepspeed.init_distributed(dist_backend=backend, dist_init_required=False, verbose=False)
    return deepspeed


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables during an import, then restore the old values."""
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


# Whole gradients from the flat parts that DeepSpeed's updates read, in the order of the weights.
#
# Dimensions: r ranks, e elements of a rank's part.

GradientLayout = Literal["whole", "end_to_end", "each"]
"""How ranks share gradients. whole: each rank has all. end_to_end: all are laid end to end and cut into equal parts.
each: each gradient is cut by itself."""


def unflatten(
    tensors: Sequence[Tensor],
    shapes: Mapping[str, torch.Size],
    layout: GradientLayout,
    group: dist.ProcessGroup,
    device: torch.device,
) -> dict[str, Tensor]:
    """Return the gradient of each weight, by its name; all ranks of the group must call it.

    tensors: this rank's parts, in order; padding is at the end of all (end_to_end) or of each weight (each).
    shapes: of the weights, in the same order.
    device: of the group's communication; offloaded parts are elsewhere.
    Example: two ranks, weights of 3 and 2 elements. end_to_end: a0 a1 a2 b0 | b1 - - -. each: a0 a1 b0 | a2 - b1.
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
        # A weight is the same columns of every rank: its part's width is its elements over the ranks, rounded up.
        widths = [-(-shape.numel() // group.size()) for shape in shapes.values()]
        pieces = tuple(columns_re.flatten() for columns_re in torch.split(parts_re, widths, dim=1))
    return {
        name: piece[: shape.numel()].view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


LAYOUTS: Mapping[int, GradientLayout] = {0: "whole", 1: "end_to_end", 2: "end_to_end", 3: "each"}
"""How the update of each ZeRO stage divides gradients among the ranks."""


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Build the engine over all ranks, with the reference training's AdamW inside."""
    return DeepSpeedTrainer(setup, mesh.get_group("data"), phase)


class DeepSpeedTrainer:
    """A `Workload` that trains as `workloads.core.trainer.Trainer` does, but by DeepSpeed's engine.

    The engine frees gradients after its update. The trainer keeps the gradients that the update read until the next
    step begins; this does not raise the peak memory of a step, which is in backward.
    """

    def __init__(self, setup: Setup, group: dist.ProcessGroup, phase: Phase) -> None:
        deepspeed, config = start(setup.device, setup.backend), settings(setup)
        model = sharded_model(deepspeed, setup, config) if setup.options["stage"] == 3 else make_model(setup)
        optimizer = make_optimizer(setup, model.parameters())
        self._weights = dict(model.named_parameters())
        # Stage 3 leaves a weight empty between its uses.
        self._shapes = {name: getattr(weight, "ds_shape", weight.shape) for name, weight in self._weights.items()}
        self._layout = LAYOUTS[int(setup.options["stage"])]
        self._group, self._phase = group, phase
        self._device = torch.device(setup.device)
        self._accumulate = int(setup.options["accumulate"])
        self._learning_rate = LearningRate(setup)
        self._gradients: list[Tensor] = []
        optimizer.register_step_post_hook(self._keep_gradients)
        engine: Any = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]
        # The engine has made its own groups.
        share_world_timeout(self._device)
        self._engine = engine
        self._notes = attention_notes(setup)
        self.model: nn.Module = engine
        self.optimizer: Optimizer = optimizer

    def step(self, tokens_bs: Tensor) -> Tensor:
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
        return self._notes

    def gradient_norm(self) -> Tensor | None:
        """See `KnowsNorm`; stage 0 does not report it."""
        norm = self._engine.get_global_grad_norm()
        return None if norm is None else torch.as_tensor(norm)

    def full_gradients(self) -> dict[str, Tensor]:
        """See `Workload.full_gradients`; all ranks must call it."""
        if not self._gradients:
            raise RuntimeError("weights have no gradient; the last step did not update them")
        return unflatten(self._gradients, self._shapes, self._layout, self._group, self._device)

    def held_tensors(self) -> dict[str, list[Tensor]]:
        """See `HoldsTensors`: DeepSpeed keeps most of the state where it cannot be found from the weights."""
        # A weight that stage 3 has divided is empty between steps; its part is in `ds_tensor`.
        parts = [weight.ds_tensor for weight in self._weights.values() if hasattr(weight, "ds_tensor")]
        # The buffer in which stage 3 adds up its part of the gradients; it stays from step to step.
        accumulated = getattr(self._engine.optimizer, "grad_partitions_flat_buffer", None)
        states = self.optimizer.state
        return {
            "parameters": [*self._weights.values(), *parts],
            "gradients": [*self._gradients, *([] if accumulated is None else [accumulated])],
            # The optimizer's own weights (keys of its state) are a copy, unless it updates the model's.
            "optimizer": [*states, *(each for state in states.values() for each in state.values())],
        }

    def progress(self) -> dict[str, float]:
        """See `KeepsProgress`."""
        return self._learning_rate.progress()

    def resume(self, progress: Mapping[str, float]) -> None:
        self._learning_rate.resume(progress)
        # Small weights that stage 3 keeps gathered are now older than their parts: free them, so that they are gathered
        # again.
        gathered: list[Any] = [
            weight for weight in self._weights.values() if hasattr(weight, "ds_tensor") and weight.numel()
        ]
        if gathered:
            gathered[0].partition(gathered)

    def own_states(self) -> dict[str, Tensor]:
        """See `KeepsOwnStates`: whole weights, the rank's parts of divided weights, and the states of its updates."""
        self._make_states_of_parts()
        own = f"rank{self._group.rank()}"
        whole = {id(weight) for weight in self._weights.values()}
        states: dict[str, Tensor] = {}
        for name, weight in self._weights.items():
            if hasattr(weight, "ds_tensor"):  # Divided by stage 3, which may also have gathered it.
                states[f"{own}.weights.{name}"] = weight.ds_tensor
            else:
                states[f"weights.{name}"] = weight
        for place, (part, part_states) in enumerate(self.optimizer.state.items()):
            if id(part) not in whole:
                states[f"{own}.optimizer.{place}.weights"] = part
            states |= {f"{own}.optimizer.{place}.{key}": tensor for key, tensor in part_states.items()}
        return states

    def _make_states_of_parts(self) -> None:
        """Make the optimizer's states in stage 3, which passes it one part at a time, none before the first update."""
        parts = getattr(self._engine.optimizer, "fp32_partitioned_groups_flat", ())
        if not parts or self.optimizer.state:
            return
        for part, place in zip(parts, self._engine.optimizer.sub_group_to_group_id.values(), strict=True):
            group = self.optimizer.param_groups[place]
            before = group["params"], group["lr"], part.grad
            group["params"], group["lr"], part.grad = [part], 0.0, torch.zeros_like(part)
            self.optimizer.step()
            group["params"], group["lr"], part.grad = before
        self._gradients.clear()  # The hook kept those of the updates above.

    def _keep_gradients(self, optimizer: Optimizer, *_: object) -> None:
        """Keep the gradients of an update; the hook runs after each update, and a stage may make several in a step."""
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        self._gradients += [weight.grad for weight in weights]


def sharded_model(deepspeed: ModuleType, setup: Setup, config: dict[str, Any]) -> Transformer:
    """Make the model for stage 3: each module is divided as soon as it is made, so that only one is whole at a time."""
    # The precision is the configuration's: given a dtype, DeepSpeed 0.19 takes bf16 where fp16 is not supported.
    # `linear` stays torch's, as in all strategies.
    with deepspeed.zero.Init(config_dict_or_path=config, mem_efficient_linear=False):
        model = outline_model(setup, device=setup.device)
    for name, weight in model.named_parameters():
        # This rank's part of the flat weight, with padding at the end.
        part: Tensor = weight.ds_tensor  # type: ignore[attr-defined]
        first = dist.get_rank() * part.numel()
        own = part[: max(0, weight.ds_numel - first)]  # type: ignore[attr-defined]
        fill_flat(own, name, first, seed=setup.seed, dims=len(weight.ds_shape), layers=setup.shape.layers)  # type: ignore[attr-defined]
    fill_tables(setup, model)
    return model


def settings(setup: Setup) -> dict[str, Any]:
    """Return DeepSpeed's configuration for this setup."""
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
        # Use torch's AdamW on the host too; DeepSpeed's own would have to be compiled.
        "zero_force_ds_cpu_optimizer": False,
        # The throughput timer would wait for the GPU at both ends of each step.
        "timers": {"throughput": {"enabled": False}},
        "steps_per_print": sys.maxsize,
    }


def _autocast(setup: Setup) -> dict[str, Any]:
    """Return the settings of autocast: weights stay in fp32 and only products round, as in every strategy.

    With weights in bf16 it would be a different model. DeepSpeed would also send the gradients of linear layers
    rounded; an empty list of modules that allow this makes them travel in fp32, as in other strategies.
    """
    dtype = AUTOCAST_TYPES.get(setup.precision)
    if dtype is None:
        return {"enabled": False}
    return {"enabled": True, "dtype": str(dtype).removeprefix("torch."), "lower_precision_safe_modules": []}
