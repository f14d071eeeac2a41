"""NCCL's log in the forms of its sources becomes choices by nccl-tests' sizes, or a reason why there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.metrics.probes import COLLECTIVE_CHOICE
from collectors.rank.nccl_log import ChoicesUnknown, ask, choices

WHO = "node7:4242:4250 [0] NCCL INFO"
VERSION = "NCCL version 2.27.5+cuda12.9"
OF_4_RANKS = (
    f"{WHO} ncclCommInitRankConfig comm 0x55a7a339db50 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 7000 - Init START"
)
LATER_OF_4_RANKS = f"{WHO} comm 0x55a7a339db50 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0"
OF_2_RANKS = f"{WHO} [Rank 0] ncclCommSplit comm 0x55a7a3400000 rank 0 nranks 2 cudaDev 0 - Init START"


def told(tmp_path: Path, *lines: str) -> list[tuple[str, str, str, str]]:
    """The labels of all choices in such a log."""
    path, environment = tmp_path / "rank0.nccl.log", dict[str, str]()
    ask(path, environment)
    path.write_text("".join(f"{line}\n" for line in lines))
    samples = choices(path, environment)
    assert all((sample.metric, sample.value) == (COLLECTIVE_CHOICE.name, 1) for sample in samples)
    return [tuple(sample.labels[label] for label in COLLECTIVE_CHOICE.labels) for sample in samples]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("line", "choice"),
    [
        (
            "AllReduce: 33554432 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
            ("all_reduce", "33554432", "NVLS", "SIMPLE"),
        ),
        (
            "Broadcast: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
            ("broadcast", "1024", "RING", "LL"),
        ),
        ("Reduce: 1024 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..0}", ("reduce", "1024", "RING", "LL128")),
        (
            "AllReduce [Symmetric]: 2097152 Bytes -> Kernel AllReduce_RSxLDMC_AGxSTMC nchannels 16 nthreads 512",
            ("all_reduce", "2097152", "AllReduce_RSxLDMC_AGxSTMC", "symmetric"),
        ),
        ("AllReduce: 1024 Bytes -> Algo 5 proto 2 time 13.570666", ("all_reduce", "1024", "NVLS_TREE", "SIMPLE")),
        ("AllReduce: 1024 Bytes -> Algo 9 proto 2 time 13.570666", ("all_reduce", "1024", "9", "SIMPLE")),
    ],
)
def test_a_line_is_a_choice(tmp_path: Path, line: str, choice: tuple[str, str, str, str]) -> None:
    assert told(tmp_path, VERSION, f"{WHO} {line}") == [choice]


@pytest.mark.parametrize(
    "line",
    [
        "AllGather: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..7}",
        "AllGather: 4194304 Bytes -> Algo 1 proto 1 time 31.250000",
    ],
)
@pytest.mark.parametrize("communicator", [OF_4_RANKS, LATER_OF_4_RANKS])
def test_the_size_is_of_all_ranks_parts_in_both_forms(tmp_path: Path, line: str, communicator: str) -> None:
    assert told(tmp_path, communicator, f"{WHO} {line}") == [("all_gather", "4194304", "RING", "LL128")]


def test_a_symmetric_kernel_counts_one_ranks_part_too(tmp_path: Path) -> None:
    line = f"{WHO} ReduceScatter [Symmetric]: 256 Bytes -> Kernel ReduceScatter_LDMC nchannels 8 nthreads 512 nWorks 1"
    assert told(tmp_path, OF_4_RANKS, line) == [("reduce_scatter", "1024", "ReduceScatter_LDMC", "symmetric")]


def test_what_was_chosen_again_is_given_once_and_what_was_chosen_otherwise_too(tmp_path: Path) -> None:
    ring = f"{WHO} AllReduce: 4 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..0}}"
    tree = f"{WHO} AllReduce: 4 Bytes -> Algo TREE proto LL channel{{Lo..Hi}}={{0..0}}"
    assert told(tmp_path, ring, tree, ring) == [("all_reduce", "4", "RING", "LL"), ("all_reduce", "4", "TREE", "LL")]


def test_what_is_no_choice_is_passed_over(tmp_path: Path) -> None:
    chosen = f"{WHO} AllReduce: 4 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..0}}"
    table = f"{WHO}     AllReduce |     0.0/   0.0 |     9.3/   1.2 |"
    other = f"{WHO} SendRecv: 4 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..0}}"
    assert len(told(tmp_path, table, other, chosen, "AllReduce: 8 By")) == 1


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([f"{WHO} 4194304 Bytes -> Algo 1 proto 1 time 31.25"], "^NCCL does not name the collective"),
        ([VERSION, f"{WHO} 4 Bytes -> Algo 1 proto 1 time 1.0"], r"^NCCL 2.27.5\+cuda12.9 does not name the"),
        ([], "^NCCL wrote no choice"),
        ([VERSION, OF_4_RANKS], r"^NCCL 2.27.5\+cuda12.9 wrote no choice .* on rank 0 of 2 ranks or more$"),
        ([f"{WHO} AllGather: 16 Bytes -> Algo RING proto LL"], "part of AllGather, .* an unknown number of ranks$"),
        (
            [OF_4_RANKS, OF_2_RANKS, f"{WHO} AllGather: 16 Bytes -> Algo RING proto LL"],
            "communicators of 2 and 4 ranks",
        ),
    ],
)
def test_what_the_log_does_not_tell_has_a_reason(tmp_path: Path, lines: list[str], reason: str) -> None:
    with pytest.raises(ChoicesUnknown, match=reason):
        told(tmp_path, *lines)


def test_a_log_that_is_not_there_has_a_reason(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    ask(tmp_path / "rank0.nccl.log", environment)
    with pytest.raises(ChoicesUnknown, match=r"^rank0\.nccl\.log cannot be read \(No such file or directory\)"):
        choices(tmp_path / "rank0.nccl.log", environment)


def test_nccl_is_asked_by_its_own_settings(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    ask(tmp_path / "100%h" / "log", environment)
    assert environment == {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
        "NCCL_DEBUG_FILE": f"{tmp_path}/100%%h/log",
    }


def test_an_earlier_trials_log_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"{WHO} AllReduce: 4 Bytes -> Algo RING proto LL\n")
    environment: dict[str, str] = {}
    ask(tmp_path / "log", environment)
    with pytest.raises(ChoicesUnknown, match="cannot be read"):
        choices(tmp_path / "log", environment)


@pytest.mark.parametrize(("name", "value"), [("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", "/tmp/mine")])
def test_settings_of_the_user_stay_and_are_named(tmp_path: Path, name: str, value: str) -> None:
    environment = {name: value}
    ask(tmp_path / "log", environment)
    assert environment == {name: value}
    with pytest.raises(ChoicesUnknown, match=f"^{name} was set to {value} before the run"):
        choices(tmp_path / "log", environment)
