"""The collectors of a node whose GPUs are a recording that never ends, and whose host is this machine."""

from __future__ import annotations

from collectors.nvml.recorded import RecordedNvml
from collectors.nvml.recording import EIGHT_GPUS, load
from collectors.roster import OPENERS, NodeCollector, open_collectors, open_nvml
from collectors.wanted import USUAL, Wanted

NOTICE = (
    "this is a demonstration: the GPUs are a recording; the run, the results and InfiniBand ports called made_* are"
    " made up; only the rest of the host and the agent are this machine's"
)


def open_recorded_collectors(wanted: Wanted = USUAL) -> tuple[NodeCollector, ...]:
    """Those of the roster, with recorded GPUs in place of this node's."""
    openers = tuple((name, _recorded if name == "nvml" else opener) for name, opener in OPENERS)
    return open_collectors(wanted, openers)


def _recorded(wanted: Wanted) -> NodeCollector:
    return open_nvml(wanted, RecordedNvml(load(EIGHT_GPUS)).nvml)
