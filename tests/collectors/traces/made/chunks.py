"""Chunks of traces to try decoders on: events as kineto writes them, and what damage makes of them."""

from __future__ import annotations

from hypothesis import strategies as st

OPERATOR = """{
    "ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 42, "tid": 43,
    "ts": 4458676522690.655, "dur": 156.777,
    "args": {
      "External id": 2049,"Record function id": 7,
      "Concrete Inputs": ["", "\\"a\\\\"], "Input Dims": [[8, 16], []], "Ev Idx": 0
    }
  }"""
LAUNCH = """{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 42, "tid": 43,
    "ts": 4458676522700.1, "dur": 15,
    "args": {
      "External id": 12353,      "cbid": 211, "correlation": 57541
    }
  }"""
COLLECTIVE = """{
    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "pid": 0, "tid": 20,
    "ts": 4458676522800.000, "dur": 2636.669,
    "args": {
      "External id": 12353, "device": 0, "stream": 20, "correlation": 57541, "est. achieved occupancy %": 0.5e-1,
      "grid": [8, 1, 1], "Collective name": "allreduce", "In msg nelems": 6637568, "Out msg nelems": 6637568,
      "Group size": 2, "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": 3
    }
  }"""
MESSAGE = """{
    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "pid": 0, "tid": 24,
    "ts": 4458676525500.000, "dur": 12.5,
    "args": {
      "External id": 12360, "device": 0, "stream": 24, "correlation": 57550, "Collective name": "send",
      "In msg nelems": 64, "Out msg nelems": 64, "Group size": 2, "dtype": "Float", "Process Group Name": "0",
      "Process Group Ranks": "[0, 1]", "Dst Rank": 1, "Src Rank": 3, "Seq": 1
    }
  }"""
ARROW = """{
    "ph": "f", "id": 57541, "pid": 0, "tid": 20, "ts": 4458676522800.000,
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }"""
FRAME = """{
    "ph": "X", "cat": "python_function", "name": "train.py(1): <\\u0041\\n>", "pid": 42, "tid": 43,
    "ts": -3.25, "dur": 0.001, "args": {"Python parent id": null, "Python id": 1, "with": [true, false, {}]}
  }"""
MEMORY = """{
    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 42, "tid": 43, "ts": 12.5,
    "args": {"Total Allocated": 4096, "Bytes": -1024, "Addr": 140737488355328, "Device Id": 3, "Device Type": 1}
  }"""
OLD_MEMORY = """{
    "ph": "i", "s": "t", "name": "[memory]", "pid": 42, "tid": 43, "ts": 13,
    "args": {"Device Type": 0, "Device Id": -1, "Bytes": 4}
  }"""
BEGIN = '{"ph": "B", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": 3}'
MARK = '{"name": "thread_name", "ph": "M", "ts": 1, "pid": "Spans", "tid": 0, "args": {"name": "thread"}}'
UNKNOWN = '{"ph": "X", "cat": "mtia_insight", "name": "x", "pid": 1, "tid": 2, "ts": 3, "dur": 4}'

EVENTS = (OPERATOR, LAUNCH, COLLECTIVE, MESSAGE, ARROW, FRAME, MEMORY, OLD_MEMORY, BEGIN, MARK, UNKNOWN)

TOKENS = (
    *('"', "\\", "\\u00e9", "\\ud800", "{", "}", "[", "]", ",", ":", "-", ".", "0", "e5", "null", "true", "NaN", " "),
    *("\t", "\0", "\x1f", "\x7f", "\x80", "\u00e9", '"args": {},', '"args": null,', '"ph": "X",', '"cat": "kernel",'),
    *('"name": "b",', '"ts": 5,', '"dur": 1e3,', '"pid": "stream 7",', '"correlation": "x",', '"Input Dims": 3,'),
    *(
        '"Input dims": [],',
        '"Collective name": null,',
        '"Collective name": "a\\"",',
        "[memory]",
        "Kernel",
        '"ph": "s",',
        '"Addr": 1,',
    ),
)
NUMBERS = (
    *("0", "-0", "-1", "1.5", "0.001", "-0.001", "1.2345", "1e3", "01", "1.", ".5", "-", '"12"', "null", "1E400"),
    *("9223372036854774.999", "9223372036854774", "9223372036854775", "9223372036854775807", "9223372036854775808"),
    *("123456789012345678", "1234567890123456789", "18446744073709551615", "1711964646000000.123", "8796093022208.001"),
)


def chunk_of(*events: str) -> bytes:
    """These events as one chunk."""
    return ("[\n  " + ",\n  ".join(events) + "\n]").encode()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A chunk of some events in which a few places were cut, flipped, doubled or written over."""
    text = bytearray(chunk_of(*draw(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        behind = min(len(text), at + draw(st.sampled_from((0, 1, 2, 4, 30, 200, 10_000))))
        kind = draw(st.sampled_from(("cut", "token", "number", "double", "flip")))
        if kind == "cut":
            del text[at:behind]
        elif kind == "token":
            text[at:behind] = draw(st.sampled_from(TOKENS)).encode()
        elif kind == "number":
            while at < len(text) and not chr(text[at]).isdigit():
                at += 1
            behind = at
            while behind < len(text) and chr(text[behind]) in "0123456789.":
                behind += 1
            text[at:behind] = draw(st.sampled_from(NUMBERS)).encode()
        elif kind == "double":
            text[at:at] = text[at:behind]
        elif at < len(text):
            text[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(text)
