"""Whether all ranks together read what one rank reads, and how not: from the fingerprints of sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.evidence import Seen
from bench.judgement.witnessed import Answer, Culprit, RuledOut, Witnessed, name_ranks


def judge_sequences(witnessed: Witnessed) -> Answer:
    """Whether they are the same in each step, whoever reads which."""
    for step in range(witnessed.steps):
        whole, shares = Counter(witnessed.reference[step].sequences), shares_of(witnessed, step)
        if sum(shares, Counter[str]()) != whole:
            return _repeated(witnessed, step) or _shared_wrongly(step, shares, whole)
    if witnessed.steps <= witnessed.epoch_steps:
        return RuledOut(text="sequences: together the ranks read what one rank reads (no epoch ended)")
    return RuledOut(text="sequences: together the ranks read what one rank reads, in each epoch")


def shares_of(witnessed: Witnessed, step: int) -> list[Counter[str]]:
    """What each share of the batch consisted of; ranks that have the same share count once, if they read the same."""
    read = {
        (place, tuple(rank[step].sequences))
        for rank, place in zip(witnessed.ranks, witnessed.places, strict=True)
        if place is not None
    }
    return [Counter(sequences) for _, sequences in sorted(read)]


def _repeated(witnessed: Witnessed, step: int) -> Culprit | None:
    """Ranks whose epochs are all alike, where those of the one rank are not."""
    epoch = witnessed.epoch_steps
    if step < epoch or _has_one_order(witnessed.reference, epoch, witnessed.steps):
        return None
    ranks = [
        rank
        for rank, place in enumerate(witnessed.places)
        if place is not None and _has_one_order(witnessed.ranks[rank], epoch, witnessed.steps)
    ]
    if not ranks:
        return None
    return Culprit(
        cause="sampler_epoch",
        step=step,
        text=f"{name_ranks(ranks)} read those of step {step - epoch} again: each epoch has the order of the first",
        next_move="call the sampler's set_epoch(epoch) before each epoch",
    )


def _has_one_order(steps: Sequence[Seen], epoch: int, count: int) -> bool:
    return all(steps[step].sequences == steps[step - epoch].sequences for step in range(epoch, count))


def _shared_wrongly(step: int, shares: Sequence[Counter[str]], whole: Counter[str]) -> Culprit:
    together = sum(shares, Counter[str]())
    repeated = sum((together - whole).values())
    several = [name for name in together if sum(name in share for share in shares) > 1]
    if several:
        text = f"{len(several)} sequence(s) were read by several ranks, where one rank reads each once"
        move = "give each data rank a share of its own, such as DistributedSampler's with its rank and their number"
    else:
        text = f"{repeated} of {sum(together.values())} sequences are not those that one rank reads"
        move = "compare seed, effective batch and order of the data"
    return Culprit(cause="data_shares", step=step, text=text, next_move=move)
