"""On real traces the figures of whole files are those that are known, and steps hold what was launched in them."""

import gzip
from pathlib import Path

import pytest

from collectors.traces.analyzers.idle import idle
from collectors.traces.analyzers.summary import WORKING, summary
from collectors.traces.reading.reader import read_trace
from collectors.traces.steps import launches
from collectors.traces.timeline import ABSENT, Timeline

TRACES = Path(__file__).parents[5] / "../shared/data/traces"
FILES = ("resnet_mi300x_rank0_of_8", "nccl_a100_rank0_of_2", "a100_rank3_of_8", "dlrm_v100_rank0")


def _read(name: str) -> Timeline:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return read_trace(path)


@pytest.mark.parametrize(
    ("name", "communication_ns", "compute_ns", "overlap_ns"),
    [
        ("resnet_mi300x_rank0_of_8", 71_516_523, 25_739_303, 15_891_299),
        ("nccl_a100_rank0_of_2", 46_876_493, 115_655_847, 7_317_025),
        ("a100_rank3_of_8", 163_535_000, 281_336_000, 75_614_000),
    ],
)
def test_a_whole_trace_divides_as_is_known(name: str, communication_ns: int, compute_ns: int, overlap_ns: int) -> None:
    found = summary([_read(name)]).shares[0].breakdown
    assert (found.communication_ns, found.compute_ns, found.overlap_ns) == (communication_ns, compute_ns, overlap_ns)
    assert found.exposed_communication_ns == communication_ns - overlap_ns


@pytest.mark.parametrize("name", FILES)
def test_the_time_of_a_step_on_the_device_holds_just_the_work_that_was_launched_in_it(name: str) -> None:
    timeline = _read(name)
    launched = launches(timeline)
    shares = [share for share in summary([timeline]).shares if share.stretch.part == "step"]
    marked = timeline.steps()
    assert len(shares) == len(marked)
    for share, (start_ns, end_ns) in zip(shares, marked, strict=True):
        mine = (launched.row != ABSENT) & (launched.start_ns >= start_ns) & (launched.start_ns < end_ns)
        for kind in WORKING:
            chosen = mine & timeline.of_kind(kind)
            assert share.work_ns[kind] == (timeline.end_ns - timeline.start_ns)[chosen].sum()


@pytest.mark.parametrize("name", FILES)
def test_the_causes_of_idle_time_add_up_to_it_in_every_stretch(name: str) -> None:
    timeline = _read(name)
    of_summary = [share.breakdown.idle_ns for share in summary([timeline]).shares]
    found = idle([timeline]).shares
    assert [sum(cause_ns or 0 for cause_ns in share.causes_ns.values()) for share in found] == of_summary


@pytest.mark.parametrize("kept", [0.5, 0.99])
@pytest.mark.parametrize("name", FILES[:2])
def test_no_step_of_a_file_that_is_cut_is_shown_as_whole(name: str, kept: float, tmp_path: Path) -> None:
    _read(name)
    text = gzip.decompress((TRACES / f"{name}.json.gz").read_bytes())
    (tmp_path / "rank0.json").write_bytes(text[: int(kept * len(text))])
    shares = summary([read_trace(tmp_path / "rank0.json", rank=0)]).shares
    assert "step" not in {share.stretch.part for share in shares}


def test_work_from_before_the_first_step_is_listed_and_not_dropped() -> None:
    found = summary([_read("resnet_mi300x_rank0_of_8")]).shares
    assert [(share.stretch.name, share.stretch.part) for share in found] == [
        ("trace", "trace"),
        ("before ProfilerStep#15", "partial"),
        ("ProfilerStep#15", "step"),
        ("ProfilerStep#16", "step"),
        ("ProfilerStep#17", "step"),
    ]
    parts_ns = [share.work_ns["compute"] for share in found[1:]]
    assert sum(parts_ns) == found[0].work_ns["compute"]
