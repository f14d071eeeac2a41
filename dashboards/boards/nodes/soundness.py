"""What the dashboards of nodes have in common: shares of limits, and when a GPU, a port or a disk is not sound.

The limits are those of the alerts, so that a colour and an alert agree.
"""

from __future__ import annotations

from collectors.metrics import agent, gpu, gpu_health, host
from collectors.metrics.metric import Metric
from dashboards import promql
from dashboards.model import Word
from dashboards.promql import GPU, SCRAPE_LABELS, Match
from dashboards.thresholds import shipped

LIMITS = shipped()
CLOCK, PCIE_LINK = gpu.GPU_CLOCK_HERTZ.alone(clock="sm"), gpu.GPU_PCIE_LINK.alone(link="now")
MEMORY, ROOM = (metric.alone(kind="available") for metric in (host.HOST_MEMORY_BYTES, host.HOST_FILESYSTEM_BYTES))
"""What shares of limits are shown of."""
PORT = (*SCRAPE_LABELS, "device", "port")
_FOLDER = (*SCRAPE_LABELS, "folder")
_BRAKES = promql.one_of("software_thermal", "hardware_thermal", "hardware_power_brake")
MINUTES = 5
"""The window of rates of a fleet, with several values at any scrape interval."""


def whole(metric: Metric, *, by: tuple[str, ...], **chosen: str | Match) -> str:
    """Select what others are shares of, one series for each set of these labels, where it is not zero."""
    return promql.positive(promql.largest(promql.select(metric, **chosen), by=by))


# Shares of a GPU's limits.


def power_share(**chosen: str | Match) -> str:
    """Return a GPU's power, of its limit in force."""
    limit = whole(gpu.GPU_POWER_LIMIT_WATTS.alone(limit="current"), by=GPU, **chosen)
    return promql.divide(promql.select(gpu.GPU_POWER_WATTS, **chosen), limit, on=GPU)


def clock_share(**chosen: str | Match) -> str:
    """Return the clock of a GPU's multiprocessors, of its maximum."""
    limit = whole(gpu.GPU_CLOCK_LIMIT_HERTZ.alone(clock="sm"), by=GPU, **chosen)
    return promql.divide(promql.select(CLOCK, **chosen), limit, on=GPU)


def memory_share(**chosen: str | Match) -> str:
    """Return a GPU's memory in use, of what processes can have: of less than all, as the driver keeps some."""
    used = promql.select(gpu.GPU_MEMORY_USED_BYTES, **chosen)
    return promql.divide(used, promql.positive(promql.plus(used, promql.select(gpu.GPU_MEMORY_FREE_BYTES, **chosen))))


def pcie_share(**chosen: str | Match) -> str:
    """Return what a PCIe link carries by its lanes and generation, of its most; an idle GPU lowers its own."""
    most = whole(gpu.GPU_PCIE_LINK.alone(link="maximum"), by=GPU, **chosen)
    return promql.divide(promql.select(PCIE_LINK, **chosen), most, on=GPU)


def pcie_traffic_share(over_minutes: int | None = None, /, **chosen: str | Match) -> str:
    """Return a PCIe link's traffic in a direction, of the most that it carries; see `_traffic`."""
    most = whole(gpu.GPU_PCIE_LINK.alone(link="maximum"), by=GPU, **chosen)
    return promql.divide(_traffic(gpu_health.GPU_PCIE_BYTES, over_minutes, **chosen), most, on=GPU)


def _traffic(counter: Metric, over_minutes: int | None, /, **chosen: str | Match) -> str:
    """over_minutes: None for a window that Grafana fits to the scrape interval; of a fleet a fixed one takes less."""
    return (
        promql.recent_rate(counter, **chosen) if over_minutes is None else promql.rate(counter, over_minutes, **chosen)
    )


def held_back(**chosen: str | Match) -> str:
    """Return the share of time in which heat, the power supply or a lowered power limit holds a GPU's clocks back."""
    return promql.either(_braked(**chosen), _capped(**chosen))


def _braked(**chosen: str | Match) -> str:
    return promql.either(
        promql.recent_rate(gpu.GPU_CLOCK_HELD_SECONDS, **chosen, reason=_BRAKES),
        # For a reason without a counter, the share of readings at which it held; where both exist, the counter counts.
        promql.average(gpu.GPU_CLOCK_HELD_RATIO, **chosen, reason=_BRAKES),
    )


def _capped(**chosen: str | Match) -> str:
    capped = promql.recent_rate(gpu.GPU_CLOCK_HELD_SECONDS, **chosen, reason="software_power_cap")
    return promql.where(capped, _lowered(**chosen), on=GPU)


def _lowered(**chosen: str | Match) -> str:
    # At the factory's power limit it is normal that power holds back a busy GPU.
    return promql.below(
        promql.select(gpu.GPU_POWER_LIMIT_WATTS.alone(limit="current"), **chosen),
        promql.select(gpu.GPU_POWER_LIMIT_WATTS.alone(limit="default"), **chosen),
        on=GPU,
    )


def held_back_lately(braked_ratio: float = 0.0, capped_ratio: float = 0.0, /, **chosen: str | Match) -> str:
    """Keep the share of the last minutes in which a GPU is held back where it is more than this.

    For a fleet: one fixed window, and comparisons first. Which of two windows has values Prometheus finds by hashing
    each series at each step, which of thousands of series takes longer than all rates.
    """
    counted = promql.rate(gpu.GPU_CLOCK_HELD_SECONDS, MINUTES, **chosen, reason=_BRAKES)
    sampled = promql.average(gpu.GPU_CLOCK_HELD_RATIO, MINUTES, **chosen, reason=_BRAKES)
    capped = promql.rate(gpu.GPU_CLOCK_HELD_SECONDS, MINUTES, **chosen, reason="software_power_cap")
    found = promql.either(
        promql.above(counted, braked_ratio),
        promql.unless(
            promql.above(sampled, braked_ratio),
            promql.select(gpu.GPU_CLOCK_HELD_SECONDS, **chosen, reason=_BRAKES),
            on=(*GPU, "reason"),
        ),
        promql.where(promql.above(capped, capped_ratio), _lowered(**chosen), on=GPU),
    )
    # Not of a GPU that is shown no more.
    return promql.where(f"({found})", promql.select(gpu.GPU_STATE, **chosen), on=GPU)


# When a GPU is not sound.

SOUND, HELD_BACK, ASKING, LATE, FAILED, LOST = range(6)
GPU_WORDS = (
    Word(value=SOUND, text="sound", colour="good"),
    Word(value=HELD_BACK, text="held back", colour="warning"),
    Word(value=ASKING, text="needs a repair or a reset", colour="warning"),
    Word(value=LATE, text="late", colour="bad"),
    Word(value=FAILED, text="cannot be read", colour="bad"),
    Word(value=LOST, text="lost", colour="bad"),
)


def gpu_state(**chosen: str | Match) -> str:
    """Return the worst that is true of each GPU, by the numbers of `GPU_WORDS`."""
    sound = promql.select(gpu.GPU_STATE, **chosen, state="answering")
    return promql.either(unsound_gpus(**chosen), _worst({SOUND: sound}, by=GPU))


def unsound_gpus(**chosen: str | Match) -> str:
    """Return the worst that is true of each GPU that is not sound: for numbers, tables and bars, which so agree."""
    state = gpu.GPU_STATE
    return _worst(
        {
            LOST: lost(**chosen),
            FAILED: promql.select(state, **chosen, state=promql.one_of("failed", "forbidden")),
            LATE: promql.select(state, **chosen, state="late"),
            ASKING: asking(**chosen),
            HELD_BACK: too_often_held_back(**chosen),
        },
        by=GPU,
    )


def lost(**chosen: str | Match) -> str:
    """Return the GPUs that say that they are lost, and those of the last hours that an agent shows no more."""
    says = promql.largest(promql.select(gpu.GPU_STATE, **chosen, state="lost"), by=GPU)
    answers = promql.unless(
        promql.select(agent.AGENT_BEATS),
        promql.select(agent.AGENT_COLLECTOR, collector="nvml", state=promql.none_of("answering")),
        on=SCRAPE_LABELS,
    )
    seen = promql.seen(gpu.GPU_STATE, over_hours=LIMITS.gpus.remembered_hours, **chosen)
    absent = promql.where(
        promql.unless(seen, promql.select(gpu.GPU_STATE, **chosen), on=GPU), answers, on=SCRAPE_LABELS
    )
    # Of a fleet few are absent, so that the largest is taken last.
    return promql.either(says, promql.largest(absent, by=GPU))


def too_often_held_back(**chosen: str | Match) -> str:
    """Keep the share of the last minutes in which a GPU is held back where the alerts find it too large."""
    return held_back_lately(LIMITS.gpus.braked_ratio, LIMITS.gpus.capped_ratio, **chosen)


def asking(**chosen: str | Match) -> str:
    """Return what GPUs need by their driver's word, and repairs of memory that wait or have failed."""
    return promql.either(
        promql.select(gpu_health.GPU_RECOVERY, **chosen, action=promql.none_of("none")),
        promql.equal(promql.select(gpu_health.GPU_MEMORY_REPAIR, **chosen), 1),
    )


def erring(**chosen: str | Match) -> str:
    """Return the GPUs that reported an XID which no program causes within the news' hours, or lost data in memory."""
    limits = LIMITS.gpus
    of_programs = promql.none_of(*map(str, limits.application_xids))
    return promql.either(
        promql.age_below(gpu_health.GPU_XID_TIME, limits.news_hours, **chosen, xid=of_programs),
        promql.has_grown(
            gpu_health.GPU_ECC_VOLATILE_ERRORS, over_minutes=60 * limits.news_hours, **chosen, kind="uncorrected"
        ),
    )


def _worst(states: dict[int, str], *, by: tuple[str, ...]) -> str:
    """Return the first state's number for which each group of these labels has a series."""
    return promql.either(*(promql.times(number, promql.one_each(one, by=by)) for number, one in states.items()))


# Hosts and their ports.

NODE_SOUND, _FILLING, PORT_DOWN, _STALE, _GONE = range(5)
NODE_WORDS = (
    Word(value=NODE_SOUND, text="sound", colour="good"),
    Word(value=_FILLING, text="a disk fills up", colour="warning"),
    Word(value=PORT_DOWN, text="a port is down", colour="bad"),
    Word(value=_STALE, text="a collector does not answer", colour="bad"),
    Word(value=_GONE, text="its agent does not answer", colour="bad"),
)


def node_state(**chosen: str | Match) -> str:
    """Return the worst that is true of each node, by the numbers of `NODE_WORDS`."""
    sound = promql.select(agent.AGENT_BEATS, **chosen)
    return promql.either(unsound_nodes(**chosen), _worst({NODE_SOUND: sound}, by=SCRAPE_LABELS))


def unsound_nodes(**chosen: str | Match) -> str:
    """Return the worst that is true of each node that is not sound."""
    return _worst(
        {
            _GONE: gone(**chosen),
            _STALE: promql.select(agent.AGENT_COLLECTOR, **chosen, state=promql.none_of("answering")),
            PORT_DOWN: down(**chosen),
            _FILLING: filling(**chosen),
        },
        by=SCRAPE_LABELS,
    )


def gone(**chosen: str | Match) -> str:
    """Return the targets that do not answer, and at which an agent did within the last hours."""
    seen = promql.seen(agent.AGENT_BEATS, over_hours=LIMITS.agents.remembered_hours, **chosen)
    return promql.where(promql.unanswered(), seen, on=SCRAPE_LABELS)


def down(**chosen: str | Match) -> str:
    """Return the ports that are in another state than ACTIVE, or gone, and were ACTIVE within the last hours."""
    info = host.HOST_INFINIBAND_INFO
    seen = promql.seen(info, over_hours=LIMITS.infiniband.remembered_hours, **chosen, state="ACTIVE")
    return promql.where(
        promql.unless(promql.largest(seen, by=PORT), promql.select(info, **chosen, state="ACTIVE"), on=PORT),
        promql.select(host.HOST_LOAD, **chosen),
        on=SCRAPE_LABELS,
    )


def room(**chosen: str | Match) -> str:
    """Return what is available on each file system that is watched, of all."""
    available, total = (host.HOST_FILESYSTEM_BYTES.alone(kind=kind) for kind in ("available", "total"))
    return promql.divide(
        promql.largest(promql.select(available, **chosen), by=_FOLDER),
        promql.positive(promql.largest(promql.select(total, **chosen), by=_FOLDER)),
    )


def filling(**chosen: str | Match) -> str:
    """Keep the room on file systems where the alerts find it too small."""
    return promql.beneath(room(**chosen), LIMITS.host.filling_ratio)


def port_traffic_share(over_minutes: int | None = None, /, **chosen: str | Match) -> str:
    """Return an InfiniBand port's traffic in a direction, of what its link carries; see `_traffic`."""
    link = whole(host.HOST_INFINIBAND_LINK, by=PORT, **chosen)
    return promql.divide(_traffic(host.HOST_INFINIBAND_BYTES, over_minutes, **chosen), link, on=PORT)


def memory_left(**chosen: str | Match) -> str:
    """Return a host's memory that is available without swapping, of all."""
    total = whole(host.HOST_MEMORY_BYTES.alone(kind="total"), by=SCRAPE_LABELS, **chosen)
    return promql.divide(promql.select(MEMORY, **chosen), total, on=SCRAPE_LABELS)


def cpu_share(modes: Match, **chosen: str | Match) -> str:
    """Return the time of a host's CPUs in each of these modes, of all their time."""
    all_modes = promql.recent_rate(host.HOST_CPU_SECONDS, **chosen)
    of_modes = promql.recent_rate(host.HOST_CPU_SECONDS, **chosen, mode=modes)
    return promql.divide(of_modes, promql.total(all_modes, by=SCRAPE_LABELS), on=SCRAPE_LABELS)
