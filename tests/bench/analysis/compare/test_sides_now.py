"""The sides of `observatory compare --ab` before anything starts: their options, and their source trees."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bench.analysis.compare.ab import args_of_side, shortened_note
from bench.engines.wire.frames import PROTOCOL
from bench.errors import Misuse
from bench.session.case_args import CaseArgs
from bench.session.checkouts import Checkout, check_checkout, check_out
from tests.bench.made.examples import make_case

ARGS = CaseArgs(strategy="ddp", ranks=(2,), options=("bucket_mb=25", "clip=1.0"))


def test_a_key_of_a_side_is_one_of_a_case_or_an_option_of_the_strategy() -> None:
    words = ("ranks=4", "batch=8", "shape=125m", "precision=bf16", "kv-heads=2", "bucket_mb=1", "threads=2")
    found = args_of_side(ARGS, words, "a")
    assert (found.ranks, found.shape_name, found.precision, found.threads) == ((4,), "125m", "bf16", 2)
    assert dict(found.dimensions) == {"batch": 8, "kv_heads": 2}
    assert found.options == ("clip=1.0", "bucket_mb=1")
    assert args_of_side(ARGS, (), "b") == ARGS


def test_a_side_of_another_strategy_leaves_out_the_options_that_it_lacks() -> None:
    found = args_of_side(ARGS, ("strategy=fsdp", "wrap=block"), "b")
    assert (found.strategy, found.options) == ("fsdp", ("clip=1.0", "wrap=block"))


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("bucket_mb", "has no value; write it as KEY=VALUE, for example --a bucket_mb=1"),
        ("bucket_mb=", "has no value"),
        ("trials=3", "--a trials cannot be set for one side: both are measured alike; use --trials"),
        ("warm-up=3", "use --warm-up"),
        ("ranks=two", '--a ranks is "two"; it must be a whole number'),
        ("ranks=-1", "must be a whole number"),
    ],
)
def test_a_key_that_no_side_can_have_is_refused(word: str, says: str) -> None:
    with pytest.raises(Misuse, match=r"^--a ") as refused:
        args_of_side(ARGS, (word,), "a")
    assert says in str(refused.value)


def test_a_key_is_given_once() -> None:
    with pytest.raises(Misuse, match="--b gives bucket_mb twice"):
        args_of_side(ARGS, ("bucket_mb=1", "bucket_mb=2"), "b")


def test_a_note_fits_and_is_on_one_line() -> None:
    assert shortened_note("short") == "short"
    assert len(shortened_note("x" * 500)) == 200
    assert shortened_note("a\nb") == "a?b"


# Source trees.


def _tree(folder: Path, *, protocol: int = PROTOCOL, version: int = 1, options: str = "") -> Checkout:
    """A source tree that tells only what is asked of it."""
    frames = folder / "bench" / "engines" / "wire"
    frames.mkdir(parents=True)
    for package in (folder / "bench", folder / "bench" / "engines", frames):
        (package / "__init__.py").touch()
    (frames / "frames.py").write_text(f"PROTOCOL = {protocol}\n")
    (folder / "workloads").mkdir()
    (folder / "workloads" / "__init__.py").touch()
    (folder / "workloads" / "registry.py").write_text(
        "from types import SimpleNamespace as Made\n"
        f"options = [Made(name=name, default=1) for name in {options!r}.split()]\n"
        f"SPECS = [Made(name='ddp', options=options, version_on=lambda device: {version})]\n"
    )
    return Checkout(folder=folder.resolve(), name="old")


CASE = make_case()
NAMES = " ".join(CASE.options)


def test_a_source_tree_that_means_the_same_by_the_case_is_taken(tmp_path: Path) -> None:
    check_checkout(_tree(tmp_path, version=CASE.version, options=NAMES), CASE)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"protocol": 1},
            f"checkout old speaks protocol 1 between runner and agent, this program 4 and 5 and {PROTOCOL}; ",
        ),
        (
            {"version": 99},
            f"has version 99 of the definition of ddp, this program has version {CASE.version}: different versions",
        ),
        ({"options": f"{NAMES} turbo"}, "its ddp has an option turbo that this program lacks"),
    ],
)
def test_a_source_tree_that_means_something_else_is_refused(
    changes: dict[str, object], says: str, tmp_path: Path
) -> None:
    tree = _tree(tmp_path, **{"version": CASE.version, "options": NAMES, **changes})  # type: ignore[arg-type]
    with pytest.raises(Misuse) as refused:
        check_checkout(tree, CASE)
    assert says in str(refused.value)


def test_a_source_tree_may_lack_an_option_that_is_left_at_its_default(tmp_path: Path) -> None:
    tree = _tree(tmp_path, version=CASE.version, options=NAMES.replace("overlap", ""))
    check_checkout(tree, CASE)
    with pytest.raises(Misuse, match="its ddp has no option overlap; leave it at its default"):
        check_checkout(tree, make_case(options={**CASE.options, "overlap": False}))


def test_without_an_option_whose_default_changed_a_tree_measures_what_was_usual_before(tmp_path: Path) -> None:
    tree = _tree(tmp_path, version=CASE.version, options=NAMES.replace("bucket_mb", ""))
    check_checkout(tree, make_case(options={**CASE.options, "bucket_mb": 25.0}))
    for size_mb in (0.35, 1.0):
        with pytest.raises(Misuse, match=r"its ddp has no option bucket_mb; use bucket_mb=25\.0"):
            check_checkout(tree, make_case(options={**CASE.options, "bucket_mb": size_mb}))


def test_a_source_tree_without_the_strategy_or_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    tree = _tree(tmp_path)
    with pytest.raises(Misuse, match="checkout old has no strategy fsdp"):
        check_checkout(tree, make_case("fsdp"))
    (tmp_path / "workloads" / "registry.py").write_text("import no_such_module\n")
    with pytest.raises(
        Misuse, match="checkout old cannot be run: ModuleNotFoundError: No module named 'no_such_module'"
    ):
        check_checkout(tree, CASE)


def test_a_folder_is_taken_as_it_is_and_must_hold_the_program(tmp_path: Path) -> None:
    _tree(tmp_path / "tree")
    with check_out(str(tmp_path / "tree")) as found:
        assert (found.folder, found.commit) == (tmp_path / "tree", None)
    with (
        pytest.raises(Misuse, match=r"is not a source tree of this program: bench/__init__.py is missing"),
        check_out(str(tmp_path)),
    ):
        pass


def _git(folder: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    ended = subprocess.run(
        ["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True, env=environment
    )
    return ended.stdout.strip()


def test_a_commit_is_checked_out_beside_and_removed_afterwards(tmp_path: Path) -> None:
    source = tmp_path / "source"
    _tree(source, protocol=1)
    _git(source, "init", "--quiet")
    _git(source, "add", "--all")
    _git(source, "commit", "--quiet", "--message=first")
    commit = _git(source, "rev-parse", "HEAD")
    (source / "bench" / "engines" / "wire" / "frames.py").write_text("PROTOCOL = 2\n")
    with check_out(commit[:9], source) as found:
        assert (found.commit, found.title) == (commit, f"commit {commit[:12]}")
        assert (found.folder / "bench" / "engines" / "wire" / "frames.py").read_text() == "PROTOCOL = 1\n"
    assert not found.folder.exists()
    assert _git(source, "worktree", "list", "--porcelain").count("worktree ") == 1
    for text in ("ffffffffff", "--help", "no such thing"):
        with (
            pytest.raises(Misuse, match="is neither a folder nor a commit of this source tree"),
            check_out(text, source),
        ):
            pass


def test_without_a_repository_there_are_no_commits(tmp_path: Path) -> None:
    with (
        pytest.raises(Misuse, match="does not run from a git tree; name a folder"),
        check_out("abc", tmp_path),
    ):
        pass


@pytest.mark.parametrize(("value", "bind"), [("true", True), ("false", False)])
def test_one_side_can_be_bound_and_the_other_not(value: str, bind: bool) -> None:
    assert args_of_side(ARGS, (f"bind={value}",), "b").bind is bind


def test_a_binding_that_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(Misuse, match='--b bind is "no"; it may be true or false'):
        args_of_side(ARGS, ("bind=no",), "b")
