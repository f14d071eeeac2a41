"""What one rank hands to collectives in a step, and what it holds after it, for tests to compare with laws."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from collectors.rank import flight_recorder
from collectors.rank.memory import state_bytes, states_of
from tests.workloads.training.training_runs import Ready
from workloads.cost_models.terms import States
from workloads.protocols import HoldsTensors, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStep:
    """payload_bytes: by collective, over all of its calls. calls: of all collectives."""

    payload_bytes: dict[str, int]
    calls: int


def watch_step(ready: Ready) -> WatchedStep:
    """Take the next step on gloo; what the rank entered in it, by torch's Flight Recorder."""
    before = flight_recorder.dump("gloo")
    ready.step()
    entered = flight_recorder.entered_since(before, flight_recorder.dump("gloo"))
    payload_bytes: Counter[str] = Counter()
    for collective in entered:
        payload_bytes[collective.name] += collective.payload_bytes
    return WatchedStep(payload_bytes=dict(payload_bytes), calls=len(entered))


def held_states(workload: Workload) -> States:
    """The training state that this rank holds, as collectors count it."""
    held = states_of(workload.model, workload.optimizer)
    if isinstance(workload, HoldsTensors):
        held = workload.held_tensors()
    found = {sample.labels["part"]: int(sample.value) for sample in state_bytes(held)}
    return States(
        parameters_bytes=found.get("parameters", 0),
        gradients_bytes=found.get("gradients", 0),
        optimizer_bytes=found.get("optimizer", 0),
    )
