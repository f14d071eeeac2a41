"""The agent takes orders of the registry's strategies from who has its key, and refuses all else in one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.engines.node.agent import check
from bench.engines.wire.channel import Heartbeat
from bench.engines.wire.frames import PipeStream, Refused, SignedWire, StreamEnded, key_line, meet, new_key, write_key
from bench.rank.messages import AgentFailed, FromAgent, ToAgent, TrialOrder
from tests.bench.made.examples import small_case

ORDER = TrialOrder(run="20261123-010203-ddp-abc123", trial=0, case=small_case(), limit_s=60.0)
ORDERS: msgspec.json.Decoder[ToAgent | Heartbeat] = msgspec.json.Decoder(ToAgent | Heartbeat)


def test_an_order_passes_as_it_was_made() -> None:
    order = ORDERS.decode(msgspec.json.encode(ORDER))
    assert order == ORDER
    assert isinstance(order, TrialOrder)
    check(order)


@pytest.mark.parametrize(
    "run",
    [
        "",
        ".",
        "..",
        "../r",
        "r/s",
        "/etc",
        "r\0",
        "r\n",
        "-r",
        "r s",
        "r.d",
        "a" * 129,
        "\u00e4",
        "%2e%2e",
        "~",
        "$HOME",
    ],
)
def test_a_run_whose_id_could_lead_elsewhere_is_refused(run: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"regex .* - at `\$\.run`"):
        ORDERS.decode(msgspec.json.encode(msgspec.structs.replace(ORDER, run=run)))


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_a_run_that_is_taken_is_one_folder_beneath_that_of_the_runs(run: str) -> None:
    try:
        order = ORDERS.decode(msgspec.json.encode(msgspec.structs.replace(ORDER, run=run)))
    except msgspec.ValidationError:
        return
    assert isinstance(order, TrialOrder)
    assert (Path("/runs") / order.run).resolve().parent == Path("/runs")


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "progress", "run": "../r", "trial": 0, "steps": 1},
        {"type": "trial_ended", "run": "/etc", "trial": 0, "outcome": "done"},
        {"type": "progress", "run": "r", "trial": 0, "steps": 1, "folder": "/etc"},
        {"type": "trial_ended", "run": "r", "trial": 0, "outcome": "done", "folder": "/etc"},
        {"type": "agent_failed", "text": "", "folder": "/etc"},
        {"type": "heartbeat", "folder": "/etc"},
    ],
)
def test_an_answer_with_a_path_or_an_unknown_field_is_refused(answer: dict[str, object]) -> None:
    answers: msgspec.json.Decoder[FromAgent | Heartbeat] = msgspec.json.Decoder(FromAgent | Heartbeat)
    with pytest.raises(msgspec.ValidationError, match=r"regex .* - at `\$\.run`|contains unknown field `folder`"):
        answers.decode(msgspec.json.encode(answer))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
FIELDS = sorted(msgspec.to_builtins(ORDER))


@given(st.sampled_from([*FIELDS, "folder", "code", "__class__"]), JSON)
@settings(max_examples=150, deadline=None)
def test_an_order_with_any_field_replaced_is_taken_whole_or_refused(name: str, value: object) -> None:
    made = {**msgspec.to_builtins(ORDER), name: value}
    try:
        order = ORDERS.decode(msgspec.json.encode(made))
        assert isinstance(order, TrialOrder)
        check(order)
    except (msgspec.DecodeError, Refused, RecursionError):
        return
    assert name in FIELDS
    assert order.case.strategy == "ddp"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"strategy": "os.system"}, 'strategy "os.system", which is not in the registry'),
        ({"options": {"code": "1"}}, 'option "code" that ddp does not have'),
        ({"options": {"compress": "zip"}}, 'compress "zip"; it may be none, fp16'),
    ],
)
def test_an_order_of_what_the_registry_does_not_have_is_refused(changes: dict[str, object], reason: str) -> None:
    order = msgspec.structs.replace(ORDER, case=replace(ORDER.case, **changes))  # type: ignore[arg-type]
    with pytest.raises(Refused, match=reason):
        check(order)


def test_a_node_has_the_ranks_that_it_is_ordered() -> None:
    order = msgspec.structs.replace(ORDER, case=small_case(ranks=8))
    assert order.ranks == range(8)
    assert msgspec.structs.replace(order, node=1, first_rank=4, local_ranks=2).ranks == range(4, 6)
    assert msgspec.structs.replace(order, first_rank=6, local_ranks=4).ranks == range(6, 8)
    with pytest.raises(Refused, match="begins at rank 8 of 8"):
        check(msgspec.structs.replace(order, first_rank=8))


# An agent of its own, which ends before it has loaded torch.


@contextmanager
def _agent(tmp_path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-P", "-m", "bench.engines.node.agent", "--runs", str(tmp_path), *arguments]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as agent:
        try:
            yield agent
        finally:
            agent.kill()


def _met(agent: subprocess.Popen[bytes]) -> SignedWire:
    assert agent.stdin is not None
    assert agent.stdout is not None
    key = new_key()
    agent.stdin.write(key_line(key))
    return meet(PipeStream(agent.stdout, agent.stdin), key, "runner")


def _said(agent: subprocess.Popen[bytes]) -> str:
    """What the agent printed, without what its forkserver's profiler prints where it came so far (kineto: `USDT:`)."""
    assert agent.stderr is not None
    lines = agent.stderr.read().decode().splitlines(keepends=True)
    agent.wait()
    return "".join(line for line in lines if not line.startswith("USDT:"))


def _last_answer(wire: SignedWire) -> FromAgent | Heartbeat:
    answers: list[FromAgent | Heartbeat] = []
    with suppress(StreamEnded):
        while True:
            answers.append(msgspec.json.decode(wire.receive(), type=FromAgent | Heartbeat))
    return answers[-1]


def test_a_refused_order_ends_the_agent_which_says_why_to_its_runner_and_its_log(tmp_path: Path) -> None:
    with _agent(tmp_path) as agent:
        wire = _met(agent)
        wire.send(msgspec.json.encode(msgspec.structs.replace(ORDER, run="../elsewhere")))
        answer = _last_answer(wire)
        assert isinstance(answer, AgentFailed)
        assert answer.text.startswith("it refused a message: a message is malformed: Expected `str` matching regex")
        (line,) = _said(agent).splitlines()
        assert line.startswith("agent: refused a message from the runner: a message is malformed: ")
        assert agent.returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unsigned_order_ends_the_agent(tmp_path: Path) -> None:
    with _agent(tmp_path) as agent:
        wire = _met(agent)
        body = msgspec.json.encode(ORDER)
        wire.stream.write(len(body).to_bytes(4, "big") + (1).to_bytes(8, "big") + bytes(32) + body)
        answer = _last_answer(wire)
        assert answer == AgentFailed(
            text="it refused a message: a frame is not signed with the key for this connection"
        )
        assert len(_said(agent).splitlines()) == 1


def test_an_agent_whose_key_file_others_can_read_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_key(path, new_key())
    path.chmod(0o644)
    with _agent(tmp_path, "--key-file", str(path)) as agent:
        assert (
            _said(agent) == f"agent: others can read or write the key file {path} (mode 644); run `chmod 600` on it\n"
        )
        assert agent.returncode == 1


def test_an_agent_without_a_key_does_not_start(tmp_path: Path) -> None:
    with _agent(tmp_path) as agent:
        assert agent.stdin is not None
        agent.stdin.close()
        assert _said(agent) == "agent: the runner hung up before it sent a key\n"
