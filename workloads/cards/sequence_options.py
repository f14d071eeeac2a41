"""What the cards of strategies that divide the sequence share: options, mesh, refusals, states and the averaging."""

from __future__ import annotations

from dataclasses import replace

from workloads.cards.card import Option, Setup
from workloads.cards.replica_options import BUCKET_MB, bucket_refusals, buckets
from workloads.cards.training_options import TRAINING_OPTIONS, microbatch, parts, peak_not_covered, training_refusals
from workloads.laws.activations import FULL_BYTES, INDEX_BYTES, Microbatch, paper_activation_bytes
from workloads.laws.live_tensors import Prediction, bucketed_gradients, step_peak
from workloads.laws.memory import paper_states
from workloads.laws.terms import NotCovered, States, Transfer, replicated_states

SEQUENCE_OPTIONS: tuple[Option, ...] = (*TRAINING_OPTIONS, BUCKET_MB)


def sequence_mesh(setup: Setup) -> dict[str, int]:
    """One axis, whose ranks read the same sequences."""
    return {"sequence": setup.ranks}


def sequence_refusals(setup: Setup, *, chunks: int) -> list[str]:
    """Why no strategy could divide the sequence so. chunks: the equal parts that its layout cuts it into."""
    return [*training_refusals(setup, data_ranks=1), *bucket_refusals(setup), *_chunk_refusals(setup, chunks)]


def _chunk_refusals(setup: Setup, chunks: int) -> list[str]:
    sequence = setup.shape.sequence
    if sequence % chunks == 0:
        return []
    lower = sequence - sequence % chunks
    fitting = f"{lower} or {lower + chunks}" if lower else str(chunks)
    return [f"sequence {sequence} cannot be cut into {chunks} equal chunks; --sequence {fitting} would fit"]


def own_microbatch(setup: Setup) -> Microbatch:
    """The tensors of one microbatch at a rank's own positions, but for those of attention."""
    whole = microbatch(setup, data_ranks=1)
    return replace(whole, shape=replace(setup.shape, sequence=setup.shape.sequence // setup.ranks))


def sequence_peak(setup: Setup, *, is_zigzag: bool = False) -> Prediction | NotCovered:
    """As of a rank that trains on so short sequences alone, but for the tokens: it is handed all of them.

    The replica keeps the tables of all positions, though the model has only its own by then.
    Attention keeps as much, wherever it is computed: what an exchange holds is gone when the MLP has the peak.
    """
    if (reason := peak_not_covered(setup)) is not None:
        return reason
    own, states = own_microbatch(setup), replicated_states(setup.shape)
    peak = step_peak(own, states=states, backwards=bucketed_gradients(states.gradients_bytes, parts(setup)))
    whole = microbatch(setup, data_ranks=1)
    # Own inputs are a copy, and of own targets there is one in any case.
    more_bytes = (
        parts(setup) * (whole.tokens_bytes - own.tokens_bytes) + INDEX_BYTES * own.sequences * own.shape.sequence
    )
    # Plain positions are a view of all; those of a zigzag are put together.
    positions = own.shape.sequence if is_zigzag else whole.shape.sequence
    tables_bytes = FULL_BYTES * whole.shape.sequence * whole.shape.head_width
    return replace(
        peak,
        activations_bytes=peak.activations_bytes + more_bytes,
        other_bytes=tables_bytes + INDEX_BYTES * positions,
    )


def gradient_average(setup: Setup) -> tuple[Transfer, ...]:
    """What averages the gradients of all positions, bucket by bucket during backward."""
    if setup.ranks == 1:
        return ()
    return (
        Transfer(
            collective="all_reduce",
            axis="sequence",
            payload_bytes=4 * setup.shape.parameters(),
            calls=buckets(setup),
            behind="backward",
        ),
    )


def sequence_states(setup: Setup, rank: int) -> States:
    """The whole model's on each rank."""
    return replicated_states(setup.shape)


def sequence_paper_states(setup: Setup) -> States:
    """Nothing of the states is divided: ranks share activations only."""
    return paper_states(setup.shape.parameters(), stage=0, data_ranks=1)


def sequence_paper_activations(setup: Setup) -> int:
    """All of them are divided: by positions, and attention's scores by queries or by heads."""
    whole = microbatch(setup, data_ranks=1)
    return paper_activation_bytes(whole.shape, whole.sequences, whole.checkpoint) // setup.ranks
