"""Pipeline stages: the part of the model that a stage computes, the stage that torch schedules, and the trainer.

The first stage also has the embedding, the last the norm, the head and the loss. Weights keep the names that they have
in the whole model.
The model is cut before it has memory, so that a rank never holds another's stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.optim import AdamW

from workloads.core.attention import attention_notes
from workloads.core.collectives import gather_named
from workloads.core.precision import stream_dtype
from workloads.core.sharded_gradients import AgreeingScaler, clip_gradients, parameter_groups
from workloads.core.trainer import Clip, Trainer, adamw_settings, autocast, gather_gradients
from workloads.core.transformer import Transformer, chunked_loss, next_token_loss
from workloads.cost_models.schedules import Action, ActionKind, MessageEnd, Pipeline, ScheduleName
from workloads.options import DEFER_RECEIVES
from workloads.protocols import MarkAction, Phase, TellMessage
from workloads.spec import Setup


class StageModel(nn.Module):
    """One stage's part of a model: takes tokens (first stage) or the residual stream, returns the stream or a loss.

    Dimensions: b sequences of a microbatch, s positions, d width.
    """

    cos_sr: Tensor
    sin_sr: Tensor

    def __init__(self, model: Transformer, blocks: range, *, loss_chunks: int = 1) -> None:
        """Take these blocks of the model, and the first or last stage's other layers.

        loss_chunks: chunks in which the last stage computes head and loss.
        """
        super().__init__()
        is_first, is_last = blocks.start == 0, blocks.stop == len(model.blocks)
        self.embedding = model.embedding if is_first else None
        self.blocks = nn.ModuleDict({str(index): model.blocks[index] for index in blocks})
        self.norm = model.norm if is_last else None
        self.head = model.head if is_last else None
        self.register_buffer("cos_sr", model.cos_sr, persistent=False)
        self.register_buffer("sin_sr", model.sin_sr, persistent=False)
        self.targets_bs: Tensor | None = None
        """Targets of the last stage's next forward."""
        self.loss_chunks = loss_chunks

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after this stage's blocks, (b, s, d); on the last stage the mean loss, a scalar.

        x: tokens (b, s) for the first stage, the previous stage's stream for the others.
        """
        x_bsd = x if self.embedding is None else self.embedding(x)
        for block in self.blocks.values():
            # Rotary tables of all positions: if the stream is divided by positions, attention gathers them.
            x_bsd = block(x_bsd, self.cos_sr, self.sin_sr)
        if self.norm is None or self.head is None:
            return x_bsd
        assert self.targets_bs is not None, "the last stage gets its targets first"
        if self.loss_chunks > 1:
            return chunked_loss(self.head, self.norm(x_bsd), self.targets_bs, chunks=self.loss_chunks)
        return next_token_loss(self.head(self.norm(x_bsd)), self.targets_bs)


def cut(layers: int, counts: Sequence[int]) -> list[range]:
    """Return the blocks of each stage, given their counts.

    Raises:
        ValueError: the counts do not add up to the layers.
    """
    if sum(counts) != layers:
        raise ValueError(f"stages have {sum(counts)} blocks together; the model has {layers}")
    ends = [sum(counts[: stage + 1]) for stage in range(len(counts))]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]


# Training by torch's schedules: microbatches follow each other from rank to rank.
#
# Dimensions: b sequences of the rank, or of a microbatch where a stage says so; s sequence + 1.

OF_ONE_STAGE: dict[ScheduleName, Any] = {"naive": ScheduleGPipe, "gpipe": ScheduleGPipe, "one_f_one_b": Schedule1F1B}
OF_SEVERAL_STAGES: dict[ScheduleName, Any] = {
    "interleaved": ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}


class MarkedStage(PipelineStage):
    """A stage that marks what it computes; marks enclose only the computation, never the wait for a message."""

    def __init__(
        self,
        setup: Setup,
        model: StageModel,
        pipeline: Pipeline,
        *,
        index: int,
        stream: tuple[int, int, int],
        group: dist.ProcessGroup,
        phase: Phase,
    ) -> None:
        """model: of this stage. stream: dimensions (b, s, d) of a microbatch's stream between stages."""
        is_first, is_last = index == 0, index == pipeline.stages - 1
        # Shapes as meta tensors: without them, ranks would exchange shapes in their first step.
        stream_bsd = torch.empty(stream, device="meta", dtype=stream_dtype(setup), requires_grad=True)
        tokens_bs = torch.empty((stream[0], setup.shape.sequence), dtype=torch.int64, device="meta")
        loss = torch.empty((), device="meta", requires_grad=True)
        super().__init__(
            model,
            index,
            pipeline.stages,
            torch.device(setup.device, torch.cuda.current_device()) if setup.device == "cuda" else torch.device("cpu"),
            input_args=(tokens_bs if is_first else stream_bsd,),
            output_args=(loss if is_last else stream_bsd,),
            group=group,
        )
        self.mark: MarkAction | None = None
        self.tell_message: TellMessage | None = None
        self.targets: Sequence[Tensor] = ()
        """Targets of each microbatch; read by the last stage."""
        self.sent_bytes = 0
        self._model = model
        self._phase = phase
        self._setup = setup

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """See `PipelineStage`; torch gives no types."""
        self._model.targets_bs = self.targets[fwd_chunk_id] if self.targets else None
        with self._marked("forward", fwd_chunk_id), autocast(self._setup):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        """See `PipelineStage`; the model reads a view of its input.

        For a leaf tensor, no hook in the model can determine whether half a backward reaches it (torch 2.13), and
        memory trackers need that for each module's inputs.
        """
        views = (arg.view_as(arg) for arg in args)
        return super().forward_maybe_with_nosync(*views, **kwargs)  # type: ignore[no-untyped-call]

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> Any:
        with self._marked("backward" if full_backward else "input_backward", bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> Any:
        with self._marked("weight_backward", bwd_chunk_id):
            return super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """See `PipelineStage`; stages greet their neighbours before the first step, but a rank does not greet itself.

        At the tip of a V two neighbouring stages share a rank. torch 2.11 also sends greetings between these, and gloo
        has no connection for them.
        """
        return [greeting for greeting in super()._get_init_p2p_neighbors_ops() if greeting.peer != dist.get_rank()]

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._announced("sent", "forward", fwd_chunk_id, super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._announced("sent", "backward", bwd_chunk_id, super().get_bwd_send_ops(bwd_chunk_id))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._announced("asked", "forward", fwd_chunk_id, super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._announced("asked", "backward", bwd_chunk_id, super().get_bwd_recv_ops(bwd_chunk_id))

    def _announced(
        self, end: MessageEnd, kind: ActionKind, microbatch: int, messages: list[dist.P2POp]
    ) -> list[dist.P2POp]:
        """Count the sent bytes, and report the messages if there are any."""
        if end == "sent":
            self.sent_bytes += sum(message.tensor.nbytes for message in messages)
        if messages and self.tell_message is not None:
            self.tell_message(end, Action(kind=kind, stage=self.stage_index, microbatch=microbatch))
        return messages

    def _marked(self, kind: ActionKind, microbatch: int) -> AbstractContextManager[object]:
        stack = ExitStack()
        stack.enter_context(self._phase("forward" if kind == "forward" else "backward"))
        if self.mark is not None:
            stack.enter_context(self.mark(Action(kind=kind, stage=self.stage_index, microbatch=microbatch)))
        return stack


class PipelineTrainer(Trainer):
    """A rank of a pipeline, with one stage or several; a `Workload` that `RunsStages` and `CountsPayload`."""

    def __init__(
        self,
        setup: Setup,
        models: Mapping[int, StageModel],
        phase: Phase,
        *,
        pipeline: Pipeline,
        stream: tuple[int, int, int],
        group: dist.ProcessGroup,
        after_backward: Callable[[], None] = lambda: None,
        clip: Clip | None = None,
        scaler: torch.amp.GradScaler | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """models: this rank's stages, by index. stream: see `MarkedStage`. group: the ranks of one pipeline.

        after_backward: called when the schedule is done; its time counts as backward.
        clip, scaler: as in `Trainer`; by default those that agree over the group.
        notes: see `KnowsNotes`; added to the note on the attention kernel.
        """
        model = nn.ModuleList(models.values())
        super().__init__(
            setup,
            model,
            phase,
            optimizer=AdamW(parameter_groups(model.parameters()), **adamw_settings(setup)),
            after_backward=after_backward,
            clip=clip or partial(clip_gradients, groups=[group]),
            scaler=scaler or AgreeingScaler(setup.device, groups=[group], enabled=setup.precision == "fp16"),
            notes=(*attention_notes(setup), *notes),
        )
        self._stages = [
            MarkedStage(setup, stage_model, pipeline, index=index, stream=stream, group=group, phase=phase)
            for index, stage_model in models.items()
        ]
        # Ranks without the last stage scale no loss, but must still unscale their gradients.
        self._scaler.scale(torch.zeros((), device=self._stages[0].device))
        self._group = group
        self._has_first, self._has_last = 0 in models, pipeline.stages - 1 in models
        self._losses: list[Tensor] = []
        self._schedule = self._make_schedule(pipeline, is_deferring=bool(DEFER_RECEIVES.of(setup)))

    def mark_actions(self, mark: MarkAction | None, tell_message: TellMessage | None = None) -> None:
        for stage in self._stages:
            stage.mark, stage.tell_message = mark, tell_message

    def payload_bytes(self) -> Mapping[str, int]:
        return {"send": sum(stage.sent_bytes for stage in self._stages)}

    def receive_buffers(self) -> Sequence[Tensor]:
        infos = [
            info
            for stage in self._stages
            for of_microbatch in (*stage.args_recv_info.values(), *stage.grad_recv_info.values())
            for info in of_microbatch
        ]
        # The model's own input has no buffer, and neither has a gradient that no stage sends.
        return [info.buffer for info in infos if getattr(info, "buffer", None) is not None]

    def full_gradients(self) -> dict[str, Tensor]:
        """See `Workload.full_gradients`; all ranks call it."""
        own: dict[str, Tensor] = {}
        for stage in self._stages:
            own |= gather_gradients(stage.submod)
        return gather_named(own, self._group, self._stages[0].device)

    def _compute_gradients(self, tokens_bs: Tensor) -> Tensor | None:
        self._losses.clear()
        for stage in self._stages:
            stage.sent_bytes = 0
            stage.targets = tokens_bs[:, 1:].chunk(self._microbatches) if stage.is_last else ()
        self._schedule.step(
            # Contiguous, as declared to the stage: torch 2.11 compares strides, and a slice has the batch's strides.
            *((tokens_bs[:, :-1].contiguous(),) if self._has_first else ()),
            # torch computes a loss only if it gets a target; the stage already has the targets of each microbatch.
            target=tokens_bs[:, 1:] if self._has_last else None,
            return_outputs=False,
        )
        with self._phase("backward"):
            self._after_backward()
        return torch.stack(self._losses).mean() if self._has_last else None

    def _make_schedule(self, pipeline: Pipeline, *, is_deferring: bool) -> Any:
        options: dict[str, Any] = {"loss_fn": self._scaled, "scale_grads": False}
        if pipeline.schedule in OF_ONE_STAGE:
            (stage,) = self._stages
            return OF_ONE_STAGE[pipeline.schedule](stage, pipeline.microbatches, **options)
        if is_deferring:  # Older versions of torch do not have this argument.
            options["defer_pp_recv"] = True
        return OF_SEVERAL_STAGES[pipeline.schedule](self._stages, pipeline.microbatches, **options)

    def _scaled(self, loss: Tensor, target: Tensor) -> Tensor:
        """Return the loss that backward starts from: the microbatch's share of the batch's mean, scaled."""
        self._losses.append(loss.detach())
        scaled: Tensor = self._scaler.scale(loss / self._microbatches)
        return scaled
