"""Metrics of a whole run, from its summary, each with an interval if there are enough trials."""

from __future__ import annotations

from collectors.metrics.metric import RUN, metrics_in

# Steps, memory and communication, from the run's summary.

RUN_STEP_SECONDS = RUN.gauge(
    "observatory_run_step_seconds",
    "Step time of a run: the median step of the slowest rank in a trial, and the median of that over trials.",
    better="lower",
)
RUN_STEP_PREDICTED_RATIO = RUN.gauge(
    "observatory_run_step_predicted_ratio",
    "Step that the cost models predicted for a run before its first trial, divided by its measured median step: 1 means"
    " a correct prediction, below 1 the step took longer. Absent if a rate or a link that it needs had not been"
    " measured by then.",
)
RUN_MEAN_STEP_SECONDS = RUN.gauge(
    "observatory_run_mean_step_seconds",
    "Time of all measured steps of the rank that took longest, divided by their number: the median over trials.",
    better="lower",
)
RUN_STEP_QUANTILE_SECONDS = RUN.gauge(
    "observatory_run_step_quantile_seconds{quantile=p90|p99}",
    "Quantile of all measured steps of a watched run, each as long as its slowest rank's.",
    better="lower",
)
RUN_TOKENS_PER_SECOND = RUN.gauge(
    "observatory_run_tokens_per_second",
    "Tokens of one step over all ranks, divided by the run's mean step.",
    better="higher",
)
RUN_TOKENS_PER_SECOND_PER_DEVICE = RUN.gauge(
    "observatory_run_device_tokens_per_second",
    "Tokens per second of a run, divided by its ranks.",
    better="higher",
)
RUN_FLOPS = RUN.gauge(
    "observatory_run_device_flops_per_second",
    "Model FLOPs of one step by PaLM's formula, divided by the run's mean step and its ranks.",
    better="higher",
)
RUN_MFU = RUN.gauge(
    "observatory_run_mfu_ratio",
    "Model FLOPs per second and device (PaLM's formula), divided by its dense peak at the run's precision.",
    better="higher",
)
RUN_MEASURED_MFU = RUN.gauge(
    "observatory_run_measured_mfu_ratio",
    "Model FLOPs per second and device (PaLM's formula), divided by the fastest matrix product that a matmul run"
    " measured on the same hardware at the same precision.",
    better="higher",
)
RUN_PHASE_SECONDS = RUN.gauge(
    "observatory_run_phase_seconds{phase}",
    "Time of a phase in a step: the mean step of the rank that spent most in it, the median over trials.",
    better="lower",
)
RUN_RANK_PHASE_SECONDS = RUN.gauge(
    "observatory_run_rank_phase_seconds{rank, phase}",
    "Time by its host of a phase in the mean step of one rank of a watched run, with the waiting in it.",
    better="lower",
    of_each="rank",
)
RUN_DATA_WAIT_SECONDS = RUN.gauge(
    "observatory_run_data_wait_seconds",
    "Time of a step in which the host waited for a batch while its GPU may have computed: the mean step of the rank"
    " whose host waited most, the median over trials; absent on a CPU, where it is the phase data.",
    better="lower",
)
RUN_SCALING_EFFICIENCY = RUN.gauge(
    "observatory_run_scaling_efficiency_ratio{scaling, baseline}",
    "Tokens per second and rank of a run, divided by those of its baseline with equal work per rank (weak) or"
    " equal total work (strong). The baseline is one rank measured alternately with the run (beside), one rank"
    " from the history, or the run that a person named; unknown if an older version wrote it. Only efficiencies"
    " with one kind of baseline are comparable.",
    better="higher",
)
RUN_EXPECTED_EFFICIENCY = RUN.gauge(
    "observatory_run_scaling_efficiency_expected_ratio{scaling, baseline}",
    "Scaling efficiency that the cost model predicts for a run: the baseline's step of one rank at this rank's"
    " share of the work, divided by that step plus a pipeline's bubble and the transfers that forward and backward"
    " cannot hide, on the links that collectives runs measured on the same hardware. It uses nothing that the run"
    " measured. The interval comes from the baseline's trials; the links are taken as exact.",
)
RUN_PEAK_MEMORY_BYTES = RUN.gauge(
    "observatory_run_peak_memory_bytes{account=allocator|live_tensors|resident}",
    "Most memory of any rank: allocator (tensors on the GPU, largest measured step), live_tensors (tensors on the"
    " CPU, one unmeasured step) or resident (the process).",
    better="lower",
)
RUN_MEMORY_ACCOUNT_BYTES = RUN.gauge(
    "observatory_run_memory_account_bytes{part=total|unexplained|..., account=measured|implementation|paper}",
    "Bytes of a part of training's memory (parameters, gradients, optimizer, activations, other that outlives a"
    " step, its unexplained part, total): measured (the most of any rank; activations and other of the rank"
    " with the most in total), or expected by the account of this implementation or of the paper. Parameters,"
    " gradients and optimizer are what a rank holds after a step; the total is the peak within a step, so the"
    " parts need not add up to it.",
)
RUN_MEMORY_PREDICTED_RATIO = RUN.gauge(
    "observatory_run_memory_predicted_ratio{part=total|...}",
    "Bytes of a part of training's memory that the account of this implementation predicts, divided by the"
    " measured bytes.",
)
RUN_OBSERVER_RATIO = RUN.gauge(
    "observatory_run_observer_ratio",
    "Host time that the collectors and the log of a rank took in all measured steps, divided by these steps' time;"
    " the largest rank's, and the median over trials.",
    better="lower",
)
RUN_GPU_POWER_WATTS = RUN.gauge(
    "observatory_run_gpu_power_watts",
    "Power of a GPU of a run while its ranks measure: what the driver's energy counters gained from the first to the"
    " last beat of the node in the measured steps, divided by the time between these beats, and the mean over the run's"
    " GPUs, each counted once; the median over trials.",
)
RUN_TOKEN_ENERGY_JOULES = RUN.gauge(
    "observatory_run_token_energy_joules",
    "Energy that all GPUs of a run take for one token: their power together, times the mean step, divided by"
    " the step's tokens; the median over trials. Excludes hosts, switches and cooling; includes other work on"
    " the same GPUs.",
    better="lower",
)
RUN_LOSS = RUN.gauge(
    "observatory_run_loss_nats", "Cross-entropy of the last measured step, as the mean over ranks that compute a loss."
)
RUN_CHECKPOINT_STALL_SECONDS = RUN.gauge(
    "observatory_run_checkpoint_stall_seconds",
    "Time for which training paused for one checkpoint: the rank that paused longest, the median over a trial's saves,"
    " then over trials. In sync mode until all files were on disk, in async mode until states were copied to the host.",
    better="lower",
)
RUN_CHECKPOINT_WRITE_SECONDS = RUN.gauge(
    "observatory_run_checkpoint_write_seconds",
    "Time from the start of a save until all ranks' files were flushed to disk: the median over a trial's saves, then"
    " over trials.",
    better="lower",
)
RUN_CHECKPOINT_RANK_BYTES = RUN.gauge(
    "observatory_run_checkpoint_rank_bytes",
    "Bytes that the rank which writes most writes in one checkpoint.",
    better="lower",
)
RUN_CHECKPOINT_BYTES_PER_SECOND = RUN.gauge(
    "observatory_run_checkpoint_bytes_per_second",
    "Bytes of all ranks' files of one checkpoint, divided by the time until they were flushed to disk.",
    better="higher",
)
RUN_SAVING_STEP_SECONDS = RUN.gauge(
    "observatory_run_saving_step_seconds",
    "Time of steps that began while a checkpoint was written in the background: the median step of the slowest rank in"
    " a trial, and the median of that over trials. Such steps are extra ones and no part of any other figure.",
    better="lower",
)
RUN_TRACED_STEP_SECONDS = RUN.gauge(
    "observatory_run_traced_step_seconds",
    "Step under the profiler: the median over a trial's ranks and traced steps, then over trials; what it exceeds the"
    " median step by is the profiler's cost.",
    better="lower",
)
RUN_TRACED_RATIO = RUN.gauge(
    "observatory_run_traced_ratio{part=communication|overlap|...}",
    "Part of a traced step, divided by the traced step's time: compute, communication, overlap,"
    " exposed_communication, exposed_copy, idle; the median over a trial's ranks and steps, then over trials."
    " All parts but communication and overlap are disjoint, and add up to the step except for rounding by"
    " medians.",
)
RUN_OVERLAP_RATIO = RUN.gauge(
    "observatory_run_overlap_ratio",
    "Overlap of communication with computation, divided by communication time: the median over a trial's ranks and"
    " traced steps, and the median over trials.",
    better="higher",
)
RUN_COLLECTIVE_OVERLAP_RATIO = RUN.gauge(
    "observatory_run_collective_overlap_ratio{collective}",
    "Overlap of one collective with computation, divided by the collective's time, in a run that uses several: the"
    " median over a trial's ranks and traced steps, and the median over trials.",
    better="higher",
)
RUN_ATTENTION_PAIRS = RUN.gauge(
    "observatory_run_attention_pairs{extreme=least|most, account=counted|expected}",
    "Pairs of query and key that a rank attends in a step's forward pass, over all heads and layers, for the"
    " rank with the fewest and the rank with the most; counted in traced steps, or expected by the layout.",
)
RUN_PAYLOAD_BYTES = RUN.gauge(
    "observatory_run_payload_bytes{collective, axis, account=counted|expected}",
    "Bytes of tensors that a rank passes to a collective over an axis of the device mesh in a step, before the"
    " collective's own factor: expected (by the strategy's cost model) or counted (in traced steps, the largest"
    " rank).",
)
RUN_COMMUNICATION_SECONDS = RUN.gauge(
    "observatory_run_communication_seconds{account=traced|expected}",
    "Time of a step in which collectives run, hidden or not: traced, or expected by the strategy's cost model on the"
    " link that a collectives run measured on the same hardware.",
    better="lower",
)


# Joined profiler windows of all ranks: waiting times, stragglers, and bandwidth without the waiting.

RUN_WAITING_RATIO = RUN.gauge(
    "observatory_run_waiting_ratio",
    "Share of the time that ranks spend in collectives of traced steps, summed over ranks, in which they wait"
    " for the last rank to arrive; each rank's first collective is left out.",
    better="lower",
)
RUN_COLLECTIVE_WAIT_SECONDS = RUN.gauge(
    "observatory_run_collective_wait_seconds{collective}",
    "Time of one call of a collective that a rank waits for the last rank to arrive: the mean over ranks and"
    " calls of a trial's traced steps without each rank's first, and the median over trials.",
    better="lower",
)
RUN_COLLECTIVE_TRANSFER_SECONDS = RUN.gauge(
    "observatory_run_collective_transfer_seconds{collective}",
    "Time of one call of a collective from the last rank's arrival to a rank's own end: the mean over ranks and calls"
    " of a trial's traced steps without each rank's first, and the median over trials.",
    better="lower",
)
RUN_TRACED_BUS_BANDWIDTH = RUN.gauge(
    "observatory_run_traced_collective_bus_bytes_per_second{collective}",
    "Bus bandwidth of a collective in traced steps without the wait: the bytes of all its calls times the"
    " collective's factor, divided by the time from each call's last arrival to its last end; the median over trials.",
    better="higher",
)
RUN_LAST_RATIO = RUN.gauge(
    "observatory_run_last_ratio{rank}",
    "Share of a rank's collectives in traced steps at which it arrives after all others, by more than the"
    " uncertainty of the clocks; the median over trials.",
    of_each="rank",
)
RUN_HELD_UP_RATIO = RUN.gauge(
    "observatory_run_held_up_ratio{rank}",
    "Time by which collectives could begin sooner if the rank arrived together with the second-to-last, divided"
    " by the time of the trial's traced steps; the median over trials.",
    of_each="rank",
)
RUN_STRAGGLER_RATIO = RUN.gauge(
    "observatory_run_straggler_ratio{rank, cause}",
    "Share of the traced time in which the one rank that stands out delays all others, and what it does"
    " meanwhile: compute, copy, data loading, an earlier collective or host; the median over trials. Absent if"
    " none stands out.",
)
RUN_LATE_RATIO = RUN.gauge(
    "observatory_run_late_ratio{rank, phase}",
    "Time by which the one rank of a watched run that is late leaves the phase in which it loses time after all other"
    " ranks of its host, divided by the step; of the median step. Absent if none is named.",
)
RUN_CLOCK_RESIDUAL_SECONDS = RUN.gauge(
    "observatory_run_clock_residual_seconds",
    "Time from the first to the last clock's end of one collective on the ranks' common clock, in the median of"
    " a trial's worst process group: the uncertainty when times of different hosts are compared; absent if all"
    " ranks are on one host, which has one clock.",
)


# Pipelines: the bubble and its parts, and the time and memory of each stage.

RUN_BUBBLE_RATIO = RUN.gauge(
    "observatory_run_bubble_ratio{account=measured|expected}",
    "Share of time in which the ranks of a pipeline do not compute for any stage, from the first action's start"
    " to the last one's end: measured (the median over a trial's pipelines and timed steps, then over trials),"
    " or expected (the schedule simulated with the measured times of its stages).",
    better="lower",
)
RUN_BUBBLE_PART_RATIO = RUN.gauge(
    "observatory_run_bubble_part_ratio{part}",
    "Part of the measured bubble: schedule (with equal stages and an ideal wire), imbalance (what the stages'"
    " own times add), transfer (what the time on the link adds), uneven (what actions that take longer than"
    " their stage's median add), message (what messages take beyond the transfer), waiting_for_a_core (between"
    " actions, while a rank is ready but not scheduled), unexplained (the rest: what hosts do between actions,"
    " and what is not known). The parts add up to the bubble, and a part may be below 0.",
)
RUN_STAGE_SECONDS = RUN.gauge(
    "observatory_run_stage_seconds{stage, action}",
    "Time that a pipeline stage computes for one microbatch: forward, backward, or backward's halves input_backward"
    " and weight_backward; the median over microbatches, pipelines and timed steps, then over trials.",
    better="lower",
)
RUN_LIVE_MICROBATCHES = RUN.gauge(
    "observatory_run_live_microbatches{stage, account=measured|expected}",
    "Most microbatches that a pipeline stage holds at once, forward begun and backward not ended: measured (the most"
    " of any pipeline and timed step), or expected by the schedule.",
)
RUN_STAGE_ACTIVATION_BYTES = RUN.gauge(
    "observatory_run_stage_activation_bytes{stage, account=measured|expected}",
    "Most bytes that forwards of a pipeline stage's live microbatches have left for backward: measured (the most of"
    " any pipeline, in one unmeasured step), or expected by the schedule and the cost model of activations.",
    better="lower",
)

METRICS = metrics_in(globals())
