"""What the trace of a collective says of it: which one, over which ranks, and how much."""

from __future__ import annotations

import msgspec


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One way of calling a collective; calls alike are one Call.

    collective: as the catalogue calls it, such as all_reduce; of unlike names for one collective the same.
    group: the name of the process group, alike on its ranks. ranks: those in it. group_size: how many they are, which
    a trace may tell where it does not tell which.
    dtype: of the elements, in torch's short names, such as bfloat16.
    given_elements, filled_elements: of this rank's input and output.
    peer: of a message, the other rank. None or empty: the trace does not say.
    """

    collective: str
    group: str | None = None
    ranks: tuple[int, ...] = ()
    dtype: str | None = None
    given_elements: int | None = None
    filled_elements: int | None = None
    peer: int | None = None
    group_size: int | None = None
