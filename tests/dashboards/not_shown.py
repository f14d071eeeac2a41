"""The metrics that no panel shows, each with the reason; all others must be on one.

A metric counts as shown where a panel or a mark asks for it, by any of the names that /metrics has for it.
"""

from __future__ import annotations

from collectors.metrics import agent, gate, gpu_health, probes, process, rank, results, suites
from collectors.metrics.metric import Metric

_OF_CALLS = "A value for each rank and size of a probe's call: panels show the run's own figure, which joins the ranks."
NOT_SHOWN: dict[Metric, str] = {
    agent.RANK_INFO: "It joins a rank's series to its run's host; the run and its ranks are shown by others.",
    agent.RUN_STALL_LIMIT: "The alert on stalled runs compares it with the time since the last step, which is shown.",
    gpu_health.GPU_RETIRED_PAGES: (
        "GPUs before Ampere alone have it, and what needs a reset because of it is shown as a repair of memory."
    ),
    process.PROCESS_CPU_SECONDS: "It is the agent's CPU time under the name that other programs' dashboards ask for.",
    process.PROCESS_START_TIME: "Begin and end of a process show as gaps of all that it serves.",
    **dict.fromkeys(
        (
            probes.COLLECTIVE_SECONDS,
            probes.COLLECTIVE_WITH_HOST_SECONDS,
            probes.COLLECTIVE_CHOICE,
            probes.COLLECTIVE_ROUNDS,
            probes.COLLECTIVE_SENT_BYTES,
            probes.COLLECTIVE_PEAK_BYTES,
            probes.MATMUL_SECONDS,
            probes.MATMUL_WITH_HOST_SECONDS,
            probes.COPY_SECONDS,
            probes.COPY_WITH_HOST_SECONDS,
            probes.PAIR_SECONDS,
            probes.PAIR_WITH_HOST_SECONDS,
        ),
        _OF_CALLS,
    ),
    suites.SUITE_CASE_FAILURE: "The alert on failed cases names them; `observatory suite show` has all of them.",
}

# Live series of ranks.

_ONCE_A_RUN = (
    "A run tells it in its traced or unmeasured steps alone, seldom; `observatory show RUN --details` has it as a"
)
NOT_SHOWN |= {
    rank.TOKENS: "Panels show tokens per second, for which no rate is needed.",
    rank.OVERLAP_SECONDS: "It is communication less its exposed part, and panels show both.",
    rank.LIVE_TENSOR_BYTES: f"{_ONCE_A_RUN} figure of the result.",
    rank.STAGE_ACTIVATION_BYTES: f"{_ONCE_A_RUN} figure of each stage, which the pipeline's dashboard shows.",
    rank.TIMELINE_PEAK_BYTES: f"{_ONCE_A_RUN} timeline with all that was held then.",
    **dict.fromkeys(
        (rank.CHECKPOINT_STALL_SECONDS, rank.CHECKPOINT_WRITE_SECONDS, rank.CHECKPOINT_BYTES, rank.SAVING_STEP_SECONDS),
        "A rank tells it once for each checkpoint; `observatory show RUN --details` has the run's own figures of it.",
    ),
    rank.ATTENTION_PAIRS: f"{_ONCE_A_RUN} share of the rank with the most.",
}

# Results.

_OF_ALGORITHMS = (
    "It is counted, and equal in each run of one algorithm; `observatory show RUN` compares it with its law."
)
NOT_SHOWN |= {
    **dict.fromkeys(
        (
            probes.RUN_COLLECTIVE_ROUNDS,
            probes.RUN_COLLECTIVE_TOTAL_BYTES,
            probes.RUN_COLLECTIVE_PEAK_BYTES,
            results.RUN_ATTENTION_PAIRS,
        ),
        _OF_ALGORITHMS,
    ),
    probes.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH: "Panels show bus bandwidth, which world sizes share.",
    probes.RUN_COLLECTIVE_CHOICE: "A word for each size; `observatory compare` tells where it changed.",
    probes.RUN_PAIR_WITH_HOST_BANDWIDTH: "Panels judge links by the exchange alone, without the host.",
    results.RUN_MEAN_STEP_SECONDS: "Panels show the median step, and the histogram what lies beside it.",
    results.RUN_TOKENS_PER_SECOND: "Panels show it per device, which is comparable between world sizes.",
    results.RUN_FLOPS: "Panels show it as MFU, a share of the peak.",
    results.RUN_DATA_WAIT_SECONDS: "Panels show the phase `data` of the step, which contains it.",
    results.RUN_CHECKPOINT_RANK_BYTES: "It is fixed by the case; panels show the time and the rate of writing it.",
    results.RUN_TRACED_STEP_SECONDS: "The profiler makes it longer; panels show its parts as shares.",
    suites.SUITE_CASES: "Cases of all nights add up in it; panels count those of the newest run of a suite.",
    suites.SUITE_LAST_END: "Panels show when a suite's newest run began, from which its period is counted.",
    gate.SUITE_NIGHT: "It is a moment that alerts compare others with; panels show the age of each series' result.",
}
