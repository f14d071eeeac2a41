"""A run of many ranks is shown by statistics over all and by the ranks that a person would look at."""

import math
import statistics
from pathlib import Path

import pytest

from bench.serve.live.many_ranks import MOST_RANKS, SHOWN_EACH, ShownRanks, Spread
from bench.serve.live.runs import LOGS_A_LOOK, RunLogs, Shown
from bench.serve.server import page_of
from bench.store.run_dir import Run, begin, save, summarise
from collectors.metrics.agent import RANK_INFO, RUN_LAST_PROGRESS
from collectors.metrics.metric import Metric, Sample
from collectors.metrics.rank import COMPUTE_SECONDS, LIVE_TENSOR_BYTES, LOSS, RESIDENT_BYTES, STEP_SECONDS
from collectors.metrics.run_counts import STEP_DURATION, STEPS
from collectors.prometheus.exposition import Histogram, Owned
from collectors.sample_log import Opened, Reading, SampleLog
from tests.bench.made.examples import make_case, make_machine
from tests.benchmarks.exporter_parts.logging_ranks import LoggingRanks

RANKS = MOST_RANKS + 16


def _begin(folder: Path, ranks: int = RANKS) -> Run:
    return begin(make_case(ranks=ranks), make_machine(), folder)


def _log(run: Run, rank: int, *samples: Sample, steps: int = 1, host: str = "node0", time_ns: int = 0) -> None:
    """Begin the rank, unless it has, and log so many steps."""
    path = run.folder / f"rank{rank}.jsonl"
    is_new = not path.exists()
    log = SampleLog(path)
    if is_new:
        log.write(Opened(run=run.id, trial=0, rank=rank, time_ns=0, pid=rank, host=host))
    for step in range(steps):
        log.write(Reading(trial=0, time_ns=time_ns, mark="measured", step=step, samples=list(samples)))
    log.close()


def _read(live: RunLogs) -> list[Owned]:
    """The page once all logs were read, of which a look reads LOGS_A_LOOK, and ranks were chosen by them."""
    for _ in range(2):
        live.read()
    return live.read()


def _live(folder: Path, shown: Shown | None = None) -> RunLogs:
    return RunLogs(folder, on_notice=pytest.fail, shown=shown)


def _of_all(page: list[Owned], metric: Metric, word: str, **labels: str) -> float:
    """The value of a statistic over all ranks."""
    name = metric.over_ranks(word).name
    (value,) = [one.value for one, _ in page if one.metric == name and one.labels.items() >= labels.items()]
    return value


def _ranks(page: list[Owned]) -> set[int]:
    return {int(owner["rank"]) for sample, owner in page if sample.metric == RANK_INFO.name}


def test_statistics_are_those_of_all_ranks(tmp_path: Path) -> None:
    run = _begin(tmp_path)
    times = [0.5 + 0.001 * (rank * 37 % RANKS) for rank in range(RANKS)]
    for rank, step_s in enumerate(times):
        _log(run, rank, STEP_SECONDS.at(step_s), steps=3)
    page = _read(_live(tmp_path))
    percentiles = statistics.quantiles(times, n=100, method="inclusive")
    expected = {
        "min": min(times),
        "max": max(times),
        "mean": statistics.fmean(times),
        "sum": math.fsum(times),
        **{f"p{percent}": percentiles[percent - 1] for percent in (50, 90, 99)},
    }
    shown = {word: _of_all(page, STEP_SECONDS, word) for word in expected}
    assert shown == {word: pytest.approx(value) for word, value in expected.items()}
    assert _of_all(page, STEPS, "sum", mark="measured") == 3 * RANKS


def test_a_run_of_few_ranks_is_shown_as_it_is(tmp_path: Path) -> None:
    run = _begin(tmp_path, MOST_RANKS)
    for rank in range(MOST_RANKS):
        _log(run, rank, STEP_SECONDS.at(0.5))
    page = _read(_live(tmp_path))
    assert _ranks(page) == set(range(MOST_RANKS))
    statistics_shown = {metric.over_ranks("max").name for metric in (STEP_SECONDS, STEPS)}
    assert [sample for sample, _ in page if sample.metric in statistics_shown] == []


@pytest.mark.parametrize("metric", [STEP_SECONDS, COMPUTE_SECONDS, RESIDENT_BYTES], ids=lambda metric: metric.name)
def test_the_ranks_with_most_are_shown_and_the_outermost(tmp_path: Path, metric: Metric) -> None:
    run = _begin(tmp_path)
    culprits = {20, 41, 62, 70}
    assert len(culprits) == SHOWN_EACH
    for rank in range(RANKS):
        _log(run, rank, metric.at(9.0 if rank in culprits else 0.5))
    assert _ranks(_read(_live(tmp_path))) >= culprits | {0, RANKS - 1}


def test_a_rank_that_no_longer_steps_is_shown(tmp_path: Path) -> None:
    run, live = _begin(tmp_path), _live(tmp_path)
    for rank in range(RANKS):
        _log(run, rank, STEP_SECONDS.at(0.5))
    assert 50 not in _ranks(_read(live))
    for rank in range(RANKS):
        if rank != 50:
            _log(run, rank, STEP_SECONDS.at(0.5), steps=2, time_ns=7 * 10**9)
    page = _read(live)
    assert 50 in _ranks(page)
    assert _of_all(page, STEPS, "min", mark="measured") == 1
    assert [one.value for one, _ in page if one.metric == RUN_LAST_PROGRESS.name] == [7.0]


def test_a_run_of_4096_ranks_has_a_bounded_number_of_series(tmp_path: Path) -> None:
    """With all that a rank may say, and other ranks at the top for each reason."""
    spread, choice = Spread(), ShownRanks()
    run = _begin(tmp_path)
    ranks = LoggingRanks(run, 1.0, range(1))
    ranks.log_until(1.0)
    live = _live(tmp_path, Shown(has_nodes=False))
    of_a_rank = [sample for sample, owner in live.read() if "rank" in owner]
    for rank in range(4096):
        spread.take(str(rank), of_a_rank)
    values = [{str(rank): float(rank * factor % 4096) for rank in range(4096)} for factor in (1, 3, 5, 7, 11)]
    shown = choice.choose(dict(zip("abcde", values, strict=True)), [str(rank) for rank in range(4096)])
    buckets = 40
    assert len(shown) <= 5 * SHOWN_EACH + 2
    assert len(of_a_rank) > 60
    assert len(shown) * len(of_a_rank) + len(list(spread.samples("0"))) + buckets < 2000


def test_each_log_is_read_in_turn_and_all_at_the_end(tmp_path: Path) -> None:
    count = 2 * LOGS_A_LOOK + 50
    run, live = _begin(tmp_path, count), _live(tmp_path)
    for rank in range(count):
        _log(run, rank, STEP_SECONDS.at(0.5))

    def done() -> float:
        page = live.read()
        (histogram,) = [sample for sample, _ in page if sample.metric == STEP_DURATION.name]
        assert isinstance(histogram, Histogram)
        return histogram.value

    looks = [done(), done(), done()]
    assert looks == [LOGS_A_LOOK, 2 * LOGS_A_LOOK, count]
    for rank in range(count):
        _log(run, rank, STEP_SECONDS.at(0.5))
    save(summarise(run.folder, "done", None))
    run.close()
    assert done() == 2 * count


def test_who_is_shown_does_not_alternate_between_nearly_equal_ranks() -> None:
    choice, everyone = ShownRanks(), [str(rank) for rank in range(200)]
    first = choice.choose({"slow": {rank: 1000.0 - int(rank) for rank in everyone}}, everyone)
    swapped = {rank: 1000.0 - (int(rank) ^ 4) for rank in everyone}  # 4 to 7 are ahead of 0 to 3, by little.
    assert choice.choose({"slow": swapped}, everyone) == first
    ahead = {rank: 1200.0 if rank == "150" else value for rank, value in swapped.items()}
    assert choice.choose({"slow": ahead}, everyone) == (first | {"150"}) - {"3"}


def test_a_nan_is_left_out_of_the_ends_and_kept_in_the_mean() -> None:
    spread = Spread()
    for rank, loss in enumerate([2.0, math.nan, 1.0]):
        spread.take(str(rank), [LOSS.at(loss)])
    values = {sample.metric: sample.value for sample in spread.samples("0")}
    assert values[LOSS.over_ranks("min").name] == 1.0
    assert values[LOSS.over_ranks("max").name] == 2.0
    assert values[LOSS.over_ranks("p50").name] == 1.0
    assert math.isnan(values[LOSS.over_ranks("mean").name])


def test_what_a_rank_no_longer_says_leaves_the_statistics() -> None:
    spread = Spread()
    spread.take("0", [LOSS.at(1.0)])
    spread.take("1", [LOSS.at(3.0)])
    spread.take("1", [])
    assert {sample.value for sample in spread.samples("0")} == {1.0}
    spread.take("0", [])
    assert list(spread.samples("0")) == []


def test_a_total_has_statistics_of_its_own(tmp_path: Path) -> None:
    run = _begin(tmp_path)
    for rank in range(RANKS):
        tensors = [LIVE_TENSOR_BYTES.at(rank, category=category) for category in ("total", "other")]
        _log(run, rank, *tensors)
    notices: list[str] = []
    page = page_of([_live(tmp_path).read], on_notice=notices.append)
    names = {family.name for family in page.collect()}
    assert names >= {
        "observatory_memory_live_tensor_total_rank_max_bytes",
        "observatory_memory_live_tensor_rank_max_bytes",
    }
    assert notices == []


def test_a_nodes_exporter_shows_the_ranks_on_its_host_alone(tmp_path: Path) -> None:
    run = _begin(tmp_path)
    live = _live(tmp_path, Shown(of_host="node1"))
    for rank in range(RANKS):
        _log(run, rank, STEP_SECONDS.at(0.5), host=f"node{rank // 8}")
    assert _ranks(live.read()) == set(range(8, 16))
    # A log whose first line is still being written is asked again.
    log = run.folder / "rank70.jsonl"
    log.write_bytes(b'{"type":"opened"')
    assert _ranks(_live(tmp_path, Shown(of_host="node8")).read()) == {64, 65, 66, 67, 68, 69, 71}


def test_a_nodes_exporter_never_opens_the_logs_of_other_nodes_again(tmp_path: Path) -> None:
    run = _begin(tmp_path)
    live = _live(tmp_path, Shown(of_host="node1"))
    for rank in range(16):
        _log(run, rank, STEP_SECONDS.at(0.5), host=f"node{rank // 8}")
    live.read()
    other = run.folder / "rank0.jsonl"
    other.write_bytes(other.read_bytes().replace(b"node0", b"node1"))
    assert _ranks(live.read()) == set(range(8, 16))
