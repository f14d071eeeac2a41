"""Flight Records of NCCL as torch writes them, made by hand.

Each entry has all fields of torch's JSON. What ProcessGroupNCCL puts into them is followed call by call: which numbers
it counts up, what it says of tensors, and which entries have a state.
Source: FlightRecorderDetail.hpp, dump_json; ProcessGroupNCCL.cpp, collective, collectiveCoalesced, pointToPoint,
endCoalescing; test_c10d_nccl.py, NCCLTraceTest.test_batched_send_recv.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

State = Literal["scheduled", "started", "completed"]
Size = tuple[int, ...]

CREATED_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000_000
"""From an entry to the next, where the test says nothing else."""


class MadeRecord:
    """The recorder of one rank. rank: within the group. group: the name of the process group.

    is_timed: TORCH_NCCL_ENABLE_TIMING is set, without which no work is ever seen to have started.
    """

    def __init__(self, *, rank: int = 0, group: str = "0", is_timed: bool = False, first_id: int = 0) -> None:
        self.rank = rank
        self.group = group
        self.entries: list[dict[str, Any]] = []
        self._is_timed = is_timed
        self._first_id = first_id
        self._numbers = {group: [0, 0, 0]}  # Of collectives, of messages, of operations.

    def json(self) -> bytes:
        """What _dump_nccl_trace_json gives."""
        record: dict[str, Any] = {
            "version": "2.10",
            "comm_lib_version": "2.28.9",
            "pg_config": {self.group: {"name": self.group, "desc": "default_pg", "ranks": "[0, 1]"}},
            "pg_status": {},
            "nccl_comm_state": {},
        }
        return json.dumps(record | ({"entries": self.entries} if self.entries else {})).encode()

    def collective(
        self,
        title: str,
        given: Sequence[Size] = ((4,),),
        filled: Sequence[Size] | None = None,
        *,
        state: State = "completed",
        dtype: str = "Float",
        at_ns: int | None = None,
    ) -> MadeRecord:
        """A collective of its own. filled: as given where nothing else is said."""
        numbers = self._of_group()
        numbers[0] += 1
        numbers[2] += 1
        self._add(title, given, given if filled is None else filled, state=state, dtype=dtype, at_ns=at_ns)
        return self

    def batch(
        self,
        messages: Sequence[tuple[Literal["send", "recv"], int, Size]],
        *,
        state: State = "completed",
        dtype: str = "Float",
        at_ns: int | None = None,
    ) -> MadeRecord:
        """What batch_isend_irecv leaves: each message, without a state of its own, and the entry that closes them."""
        numbers = self._of_group()
        numbers[1] += 1
        for kind, peer, size in messages:
            numbers[2] += 1
            self._add(self._way(kind, peer), (size,), (size,), state="scheduled", dtype=dtype, is_p2p=True, at_ns=at_ns)
        # It is no message itself: initWork asks isP2POp(COALESCED), which is false.
        self._add("nccl:coalesced", (), (), state=state, at_ns=at_ns)
        return self

    def message(
        self, kind: Literal["send", "recv"], peer: int, size: Size, *, state: State = "completed"
    ) -> MadeRecord:
        """A message that was issued alone."""
        numbers = self._of_group()
        numbers[1] += 1
        numbers[2] += 1
        self._add(self._way(kind, peer), (size,), (size,), state=state, is_p2p=True)
        return self

    def unlike_gather(self, sizes: Sequence[Size], *, state: State = "completed") -> MadeRecord:
        """all_gather into tensors of unlike sizes, which is a broadcast from each rank."""
        return self._coalesced("nccl:_broadcast_oop", sizes, "nccl:ALLGATHER_coalesced", state)

    def unlike_scatter(self, sizes: Sequence[Size], *, state: State = "completed") -> MadeRecord:
        """reduce_scatter of tensors of unlike sizes, which is a reduce to each rank."""
        return self._coalesced("nccl:_reduce_oop", sizes, "nccl:REDUCE_SCATTER_coalesced", state)

    def managed(self, titles: Sequence[str], *, state: State = "completed") -> MadeRecord:
        """Unlike collectives within torch's _coalescing_manager."""
        numbers = self._of_group()
        numbers[0] += 1
        for title in titles:
            numbers[2] += 1
            self._add(title, ((4,),), ((4,),), state="scheduled")
        self._add("nccl:coalesced", (), (), state=state)
        return self

    def _coalesced(self, title: str, sizes: Sequence[Size], closing: str, state: State) -> MadeRecord:
        numbers = self._of_group()
        numbers[0] += 1
        for size in sizes:
            numbers[2] += 1
            self._add(title, (size,), (size,), state="scheduled")
        self._add(closing, (), (), state=state)
        return self

    def _way(self, kind: Literal["send", "recv"], peer: int) -> str:
        return f"nccl:{kind} {self.rank}{'->' if kind == 'send' else '<-'}{peer}"

    def _of_group(self) -> list[int]:
        return self._numbers.setdefault(self.group, [0, 0, 0])

    def _add(
        self,
        title: str,
        given: Sequence[Size],
        filled: Sequence[Size],
        *,
        state: State,
        dtype: str = "Float",
        is_p2p: bool = False,
        at_ns: int | None = None,
    ) -> None:
        number = len(self.entries)
        created_ns = CREATED_NS + number * STEP_NS if at_ns is None else at_ns
        collectives, messages, operations = self._of_group()
        is_started = self._is_timed and state != "scheduled"
        self.entries.append(
            {
                "record_id": self._first_id + number,
                "pg_id": 0,
                "process_group": [self.group, "default_pg"],
                "thread_name": "python",
                "thread_id": "139953491663744",
                "collective_seq_id": collectives,
                "p2p_seq_id": messages,
                "op_id": operations,
                "profiling_name": title,
                "time_created_ns": created_ns,
                "input_sizes": [list(size) for size in given],
                "input_dtypes": [dtype] * len(given),
                "output_sizes": [list(size) for size in filled],
                "output_dtypes": [dtype] * len(filled),
                "state": state,
                "time_discovered_started_ns": created_ns + 1 if is_started else 0,
                "time_discovered_completed_ns": created_ns + 2 if state == "completed" else 0,
                "retired": state == "completed",
                "timeout_ms": 600_000,
                "is_p2p": is_p2p,
            }
        )


EMPTY = b'{"version": "2.10", "pg_config": {}, "pg_status": {}, "comm_lib_version": "2.28.9"}'
"""Before the first collective there are no entries at all."""
