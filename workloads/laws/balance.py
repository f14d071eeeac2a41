"""How a row of blocks is cut into stages so that the longest stage is as short as it can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from workloads.parts.shape import Shape


def balance(blocks: Sequence[float], stages: int, *, before: float = 0.0, after: float = 0.0) -> tuple[int, ...]:
    """How many blocks each stage has, one or more.

    blocks: what each costs, in the order of the model. before, after: what the first and the last stage do beside.
    Of divisions whose longest stage is equal the one whose early stages have more blocks is taken: in most schedules
    those wait longer.
    Exact, by dynamic programming over the ends of stages.

    Raises:
        ValueError: there is no stage, or a stage would have no block.
    """
    if not 1 <= stages <= len(blocks):
        raise ValueError(f"stages is {stages}; {len(blocks)} blocks can be cut into 1 to {len(blocks)}")
    sums = [0.0, *accumulate(blocks)]

    def cost(stage: int, start: int, end: int) -> float:
        outer = (before if stage == 0 else 0.0) + (after if stage == stages - 1 else 0.0)
        return sums[end] - sums[start] + outer

    # longest[end]: of the best cut of the first `end` blocks into the stages so far; starts: where its last begins.
    longest = {end: cost(0, 0, end) for end in range(1, len(blocks) + 1)}
    starts: list[dict[int, int]] = []
    for stage in range(1, stages):
        best = {
            end: min((max(longest[start], cost(stage, start, end)), -start) for start in range(stage, end))
            for end in range(stage + 1, len(blocks) + 1)
        }
        longest = {end: length for end, (length, _) in best.items()}
        starts.append({end: -start for end, (_, start) in best.items()})
    counts, end = [], len(blocks)
    for of_stage in reversed(starts):
        counts.append(end - of_stage[end])
        end = of_stage[end]
    return (end, *reversed(counts))


def equal_layers(layers: int, stages: int) -> tuple[int, ...]:
    """The same number of blocks for each stage.

    Raises:
        ValueError: stages do not divide them.
    """
    if stages < 1 or layers % stages:
        raise ValueError(f"layers is {layers}, which {stages} stages do not divide")
    return (layers // stages,) * stages


def flops_balance(shape: Shape, stages: int) -> tuple[int, ...]:
    """Blocks of each stage by the operations of a step, with the head, which the last stage has; an embedding has none.

    Raises:
        ValueError: there are more stages than blocks, or none.
    """
    head = 6 * shape.width * shape.vocabulary * shape.tokens
    block = (shape.flops_per_step() - head) / shape.layers
    return balance([block] * shape.layers, stages, after=head)
