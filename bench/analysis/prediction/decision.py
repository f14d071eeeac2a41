"""The fact that decides a forecast, in one sentence: what does not fit, or what a step waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.analysis.prediction.exposed import ExposedTransfer
from bench.analysis.prediction.memory import OFFLOADED, MemoryFit
from bench.case import Case
from bench.report.format import readable, whole_percent
from workloads.cost_models.step_time import StepTime
from workloads.options import rerun_ratio

DECIDES_FROM = 0.2
"""A part other than computing decides if it takes at least this share of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The fact that decides. share: of the step or of the available memory; None if nothing is known."""

    about: Literal["memory", "compute", "communication", "bubble", "optimizer", "host", "nothing"]
    share: float | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """A step, with its optimizer if that is known, and what each transfer adds to it."""

    step: StepTime
    exposed: Sequence[ExposedTransfer]

    @property
    def compute_s(self) -> float:
        """Forward and backward, without the host's part."""
        return self.step.compute.forward_s + self.step.compute.backward_s - self.step.compute.host_s


def decide(case: Case, memory: MemoryFit, step: Seconds | None) -> Decision:
    """Return the fact that decides. step: None if unknown."""
    if not memory.fits:
        return _memory(case, memory)
    if step is None:
        return Decision(about="nothing", share=None, words="the memory is sufficient; the step is unknown")
    parts: dict[Literal["communication", "bubble", "optimizer", "host"], float] = {
        "communication": step.step.exposed_s,
        "bubble": step.step.bubble_s,
        "optimizer": step.step.compute.optimizer_s,
        "host": step.step.compute.host_s,
    }
    about = max(parts, key=lambda name: parts[name])
    share = parts[about] / step.step.step_s
    if share < DECIDES_FROM:
        share = step.compute_s / step.step.step_s
        recomputation = ", including recomputation for checkpointing" if rerun_ratio(case) else ""
        return Decision(
            about="compute", share=share, words=f"computing is {whole_percent(share)} of the step{recomputation}"
        )
    if about == "communication":
        return Decision(about=about, share=share, words=_communication(step, share))
    if about == "bubble":
        pipeline = case.spec().pipeline(case)
        assert pipeline is not None, "only a pipeline has a bubble"
        stages = f"{pipeline.stages} stages with {pipeline.microbatches} microbatches"
        words = f"{stages} are idle in their bubble for {whole_percent(share)}"
        return Decision(about=about, share=share, words=words)
    if about == "host":
        percent = whole_percent(share)
        words = f"the host's time, which earlier runs took beyond the cost models, is {percent} of the step"
        return Decision(about=about, share=share, words=words)
    words = f"the optimizer, which reads and writes memory only, is {whole_percent(share)} of the step"
    return Decision(about="optimizer", share=share, words=words)


def _communication(step: Seconds, share: float) -> str:
    """Describe the transfer that adds most: "the all_reduce over data crosses InfiniBand at 40 GB/s a rank: ..."."""
    most = max(step.exposed, key=lambda each: each.exposed_s)
    rate = readable(most.rank_bytes_per_second, "bytes/s")
    words = f"the {most.transfer.collective} over {most.transfer.axis} crosses {most.level} at {rate} a rank"
    own = most.exposed_s / step.step.step_s
    if share - own < 0.01:
        return f"{words}: {whole_percent(own)} of the step"
    return f"{words}: {whole_percent(own)} of the step, and all exposed communication {whole_percent(share)}"


def _memory(case: Case, memory: MemoryFit) -> Decision:
    assert memory.too_much is not None, "it does not fit"
    part, size = memory.too_much
    whose = "a GPU has" if case.device == "cuda" else "a rank's share of the host is"
    room = readable(memory.room_bytes, "bytes")
    if part == OFFLOADED:
        room = readable(memory.host_room_bytes, "bytes")
        words = f"a node's ranks offload {readable(size, 'bytes')} of states, and its host has {room}"
        return Decision(about="memory", share=size / memory.host_room_bytes, words=words)
    if memory.states_bytes > memory.room_bytes:
        words = f"states need {readable(memory.states_bytes, 'bytes')}, {whose} {room}"
        return Decision(about="memory", share=memory.states_bytes / memory.room_bytes, words=words)
    least = "at least " if memory.is_least else ""
    words = f"a rank needs {least}{readable(memory.total_bytes, 'bytes')}, {whose} {room}"
    words += f"; {part} take {readable(size, 'bytes')}"
    return Decision(about="memory", share=memory.total_bytes / memory.room_bytes, words=words)
