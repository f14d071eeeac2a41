"""A checkpoint that cannot be loaded is refused in one line that names it, and nothing is loaded."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.planner import WriteItemType

from tests.support.ranks import OnRanks
from tests.workloads.core.checkpoints.saving_runs import refusal, train_and_save
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready
from workloads.core.checkpointing import METADATA, _plan_of, admit_plans, remove, save, written_bytes
from workloads.core.transformer import Transformer

SETUP = small_setup("fsdp", ranks=2, shape=replace(SMALL, layers=2))


@pytest.fixture(scope="module")
def whole(on_ranks: OnRanks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    on_ranks(2, train_and_save, SETUP, folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return shutil.copytree(whole, tmp_path / "checkpoint")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGES: tuple[tuple[str, Callable[[Path], object], str], ...] = (
    ("cut", lambda folder: cut(folder / "__1_0.distcp"), "rank 1's file __1_0.distcp is truncated"),
    ("lost", lambda folder: (folder / "__1_0.distcp").unlink(), "rank 1's file __1_0.distcp is missing"),
    ("unfinished", lambda folder: (folder / METADATA).unlink(), ".metadata is missing: the save did not finish"),
    ("cut metadata", lambda folder: cut(folder / METADATA), ".metadata is damaged"),
    ("other metadata", lambda folder: (folder / METADATA).write_bytes(pickle.dumps(os.getcwd)), ".metadata is damaged"),
    ("no case", lambda folder: (folder / "case.json").unlink(), "case.json cannot be read"),
    ("cut case", lambda folder: cut(folder / "case.json"), "case.json is damaged"),
    ("no folder", lambda folder: shutil.rmtree(folder), "name the folder of a checkpoint"),
    ("newer", lambda folder: newer(folder), "it has version 99 of checkpoints"),
)


def newer(folder: Path) -> None:
    about = json.loads((folder / "case.json").read_text())
    (folder / "case.json").write_text(json.dumps({**about, "schema_version": 99}))


@pytest.mark.parametrize(("damage", "words"), [damage[1:] for damage in DAMAGES], ids=[damage[0] for damage in DAMAGES])
def test_a_damaged_checkpoint_is_refused(
    damage: Callable[[Path], object], words: str, folder: Path, on_ranks: OnRanks
) -> None:
    damage(folder)
    for said in on_ranks(2, refusal, SETUP, folder):
        assert words in said
        assert said.startswith(f"{folder}: ")
        assert "\n" not in said


OTHERS: tuple[tuple[SmallSetup, str], ...] = (
    (replace(SETUP, strategy="zero2", options=small_setup("zero2").options), "strategy was fsdp and is zero2"),
    (replace(SETUP, shape=replace(SMALL, layers=3)), "shape.layers was 2 and is 3"),
    (replace(SETUP, seed=8), "seed was 7 and is 8"),
    (replace(SETUP, options={**SETUP.options, "learning_rate": 1e-2}), "option learning_rate was"),
)


@pytest.mark.parametrize(("setup", "words"), OTHERS, ids=[words for _, words in OTHERS])
def test_another_cases_checkpoint_is_refused(setup: SmallSetup, words: str, whole: Path, on_ranks: OnRanks) -> None:
    for said in on_ranks(2, refusal, setup, whole):
        assert words in said or "option" in said


def test_a_strategy_whose_states_are_cut_by_rank_needs_as_many_ranks(on_fresh_ranks: OnRanks, tmp_path: Path) -> None:
    setup = small_setup("parameter_server", ranks=2, shape=SETUP.shape)
    on_fresh_ranks(2, train_and_save, setup, tmp_path / "checkpoint")
    for said in on_fresh_ranks(3, refusal, replace(setup, ranks=3), tmp_path / "checkpoint"):
        assert "ranks was 2 and is 3; parameter_server loads only what as many ranks saved" in said


# What ranks send each other.


class Code:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, ("/nowhere/at/all",)


class Attribute:
    """Is unpickled as an attribute of something, as Python before 3.11.4 pickles the members of enumerations."""

    def __init__(self, of: object, name: str) -> None:
        self.of, self.name = of, name

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, str]]:
        return getattr, (self.of, self.name)


def unpickled(value: object) -> object:
    text = pickle.dumps(value)
    return _plan_of(torch.frombuffer(bytearray(text), dtype=torch.uint8), len(text))


def test_a_plan_can_run_no_code() -> None:
    with pytest.raises(pickle.UnpicklingError, match=r"posix\.mkdir is not part of a checkpoint's plan"):
        unpickled(Code())


def test_of_attributes_only_members_of_enumerations_are_parts() -> None:
    assert unpickled(Attribute(WriteItemType, "TENSOR")) is WriteItemType.TENSOR
    with pytest.raises(pickle.UnpicklingError, match="only members of enumerations"):
        unpickled(Attribute(torch.Size, "mro"))
    with pytest.raises(KeyError, match="mro"):
        unpickled(Attribute(WriteItemType, "mro"))


# What a save leaves behind.


def save_and_remove(setup: SmallSetup, folder: Path) -> tuple[int, bool]:
    """The bytes that this rank wrote, and whether anything is left when all ranks have removed theirs."""
    admit_plans()
    ready = make_ready(setup)
    save(setup, ready.workload, folder)
    size_bytes = written_bytes(folder, dist.get_rank())
    remove(folder, dist.get_rank())
    dist.barrier()
    return size_bytes, folder.exists()


def test_ranks_share_what_is_written_and_remove_it(on_ranks: OnRanks, tmp_path: Path) -> None:
    """Weights and two moments in fp32 are 12 bytes a weight; torch's archives add less than 2 KB a part of a tensor."""
    model = Transformer(SETUP.shape)
    weights, tensors = sum(weight.numel() for weight in model.parameters()), len(list(model.parameters()))
    sizes = on_ranks(2, save_and_remove, SETUP, tmp_path / "checkpoint")
    assert not any(is_left for _, is_left in sizes)
    assert 12 * weights < sum(size for size, _ in sizes) < 12 * weights + 2000 * 4 * tensors * 2
    assert min(size for size, _ in sizes) > 0.4 * sum(size for size, _ in sizes)


def fill_the_disk(setup: SmallSetup, folder: Path) -> tuple[int | None, str]:
    """The error of a save onto a disk without room."""
    admit_plans()
    ready = make_ready(setup)
    # A limit of a file's size, whose signal is ignored, fails in the middle of a write, as a full disk does.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        save(setup, ready.workload, folder)
    except OSError as error:
        return error.errno, str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    raise AssertionError("it was saved")


def test_all_ranks_learn_that_one_could_not_write(on_fresh_ranks: OnRanks, tmp_path: Path) -> None:
    for number, words in on_fresh_ranks(2, fill_the_disk, SETUP, tmp_path / "checkpoint"):
        assert number is not None
        assert "File too large" in words
