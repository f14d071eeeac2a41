"""Source trees of other commits: what they say of themselves, where commits come from, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from bench.engines.local import environment_of
from bench.engines.node.tree_facts import CONTRACT
from bench.engines.node.tree_folder import unpacked
from bench.engines.wire.frames import PROTOCOL, SPOKEN
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.temporary_folders import sweep
from bench.session.checkouts import (
    SOURCE,
    archive_of,
    check_checkout,
    check_out,
    find_repository,
    git,
    require_commit,
)
from tests.bench.made.examples import make_case, make_probe
from tests.waiting import wait_until

BEFORE_PROTOCOL_5 = "4009c8db06e1196df3e8fd9716f5bafaa95a9aef"
BEFORE_PROTOCOL_4 = "40713c5c~1"


def commit_or_skip(name: str) -> str:
    """A commit of this program's own history, which a shallow clone may lack."""
    if not (SOURCE / ".git").exists():
        pytest.skip("this is no git tree")
    try:
        return git(SOURCE, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except InfrastructureFailed:
        pytest.skip(f"this clone lacks commit {name}")


def _git(folder: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "protocol.file.allow=always")
    ended = subprocess.run(
        ["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True, env=environment
    )
    return ended.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of two commits of a program that has one file."""
    folder = tmp_path / "repository"
    (folder / "bench").mkdir(parents=True)
    _git(folder, "init", "--quiet")
    for number in (1, 2):
        (folder / "bench" / "__init__.py").write_text(f"number = {number}\n")
        _git(folder, "add", "--all")
        _git(folder, "commit", "--quiet", f"--message={number}")
    return folder


# What a tree says of itself.


def test_a_tree_describes_itself_in_a_line_whose_keys_never_change() -> None:
    process = subprocess.run(
        [sys.executable, "-P", "-m", "bench.engines.node.tree_facts", "ddp", "cpu"],
        env=environment_of(SOURCE),
        capture_output=True,
        text=True,
        check=True,
    )
    facts = json.loads(process.stdout)
    assert {"contract", "folder", "protocol", "version", "options"} <= facts.keys()
    assert (facts["contract"], facts["protocol"]) == (CONTRACT, PROTOCOL)
    assert process.stdout.count("\n") == 1


def test_a_commit_from_before_the_contract_and_the_protocol_can_measure() -> None:
    commit = commit_or_skip(BEFORE_PROTOCOL_5)
    case = make_probe()  # Trainings have another definition by now.
    with check_out(commit) as checkout:
        checked = check_checkout(checkout, case)
        assert (checked.tree.protocol, checked.tree.commit) == (4, commit)
        assert checked.case == case


def test_a_commit_whose_protocol_nobody_speaks_any_more_is_refused_in_one_line() -> None:
    commit = commit_or_skip(BEFORE_PROTOCOL_4)
    with check_out(commit) as checkout, pytest.raises(Misuse) as refused:
        check_checkout(checkout, make_case())
    spoken = " and ".join(map(str, sorted(SPOKEN)))
    assert str(refused.value) == (
        f"commit {commit[:12]} speaks protocol 3 between runner and agent, this program {spoken}; measure from a tree"
        " between the two, or compare two runs of the history"
    )


def test_an_option_that_a_tree_lacks_is_not_ordered_of_it(repository: Path) -> None:
    commit = commit_or_skip(BEFORE_PROTOCOL_5)
    case = make_case()
    with check_out(commit) as checkout:
        facts = checkout.folder / "bench" / "engines" / "node" / "tree_facts.py"
        facts.write_text(
            "import json, bench\n"
            f"options = {dict(list(case.options.items())[1:])!r}\n"
            "print(json.dumps({'contract': 2, 'folder': bench.__path__[0], 'protocol': 4, 'new': 1,"
            f" 'version': {case.version}, 'options': options}}))\n"
        )
        lacking, *others = case.options
        checked = check_checkout(checkout, replace(case, options={**case.options}))
        assert list(checked.case.options) == others, lacking


def test_a_tree_that_cannot_be_imported_any_more_is_refused(repository: Path) -> None:
    commit = _git(repository, "rev-parse", "HEAD")
    with check_out(commit, repository) as checkout, pytest.raises(Misuse, match=r"cannot be run: ModuleNotFoundError"):
        check_checkout(checkout, make_case())


# Commits of a repository.


def test_a_commit_is_archived_to_the_same_bytes_with_its_hash_inside(repository: Path) -> None:
    commit = _git(repository, "rev-parse", "HEAD~1")
    archive = archive_of(repository, commit)
    assert archive == archive_of(repository, commit)
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        assert {"bench/__init__.py", "bench/machine/built_from.json"} <= set(tar.getnames())
    with unpacked(archive) as tree:
        assert (tree / "bench" / "__init__.py").read_text() == "number = 1\n"
        assert json.loads((tree / "bench" / "machine" / "built_from.json").read_text())["commit"] == commit
    assert not tree.exists()


def _archive(*members: tuple[str, bytes, str]) -> bytes:
    """A tar archive of members by name, type and where a link points."""
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            tar.addfile(member, BytesIO())
    return packed.getvalue()


@pytest.mark.parametrize("has_filters", [True, False], ids=["with filters", "before Python 3.11.4"])
def test_an_archive_is_unpacked_within_its_folder(has_filters: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    with unpacked(_archive(("a/b", tarfile.REGTYPE, ""), ("a/c", tarfile.SYMTYPE, "b"))) as tree:
        assert (tree / "a/c").resolve() == (tree / "a/b").resolve()
    for wrong in (
        ("../out", tarfile.REGTYPE, ""),
        ("a/link", tarfile.SYMTYPE, "../../out"),
        ("a/link", tarfile.SYMTYPE, "/etc"),
        ("link", tarfile.LNKTYPE, "../out"),
        ("pipe", tarfile.FIFOTYPE, ""),
    ):
        with pytest.raises(InfrastructureFailed, match="a source tree cannot be unpacked"), unpacked(_archive(wrong)):
            pass


def test_a_commit_that_was_pushed_away_is_named_as_gone(repository: Path) -> None:
    with pytest.raises(Misuse, match=r"^commit ffffffffffff is gone: .* lacks it: it was force-pushed away"):
        require_commit(repository, "f" * 40)


def test_a_shallow_clone_says_how_to_get_the_commit(repository: Path, tmp_path: Path) -> None:
    before = _git(repository, "rev-parse", "HEAD~1")
    _git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repository}", "shallow")
    with pytest.raises(Misuse, match=r"is a shallow clone; `git fetch --unshallow` there gets it"):
        require_commit(tmp_path / "shallow", before)
    assert require_commit(repository, before[:9]) == before


def test_a_named_repository_must_be_one(tmp_path: Path, repository: Path) -> None:
    assert find_repository(repository) == repository
    with pytest.raises(Misuse, match=r"^--repository .* is not a git repository; name the folder of a clone"):
        find_repository(tmp_path / "none")


def test_without_git_the_message_says_so(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    with pytest.raises(Misuse, match="git is not on the PATH, and earlier commits are read with it; install git"):
        find_repository(repository)


def test_a_commit_without_the_program_is_refused(repository: Path) -> None:
    _git(repository, "rm", "--quiet", "-r", "bench")
    _git(repository, "commit", "--quiet", "--message=gone", "--allow-empty")
    with pytest.raises(InfrastructureFailed, match="is not a tree of this program: it has no bench/"):
        archive_of(repository, _git(repository, "rev-parse", "HEAD"))


def test_an_installed_program_takes_the_folder_that_pip_recorded(repository: Path, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    assert find_repository(None, installed, lambda: repository) == repository
    with pytest.raises(Misuse, match=r"installed without a git repository \(pip recorded no source folder\); name"):
        find_repository(None, installed, lambda: None)
    with pytest.raises(Misuse, match=r"gone, which pip recorded, is not one now"):
        find_repository(None, installed, lambda: tmp_path / "gone")


# Folders of trees.


def test_the_folder_of_a_killed_process_is_swept_and_one_in_use_is_not(repository: Path) -> None:
    archive = archive_of(repository, "HEAD")
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, signal, sys\n"
            "from bench.engines.node.tree_folder import unpacked\n"
            "with unpacked(sys.stdin.buffer.read()) as tree:\n"
            "    print(tree, flush=True)\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n",
        ],
        input=archive,
        capture_output=True,
        check=False,
    )
    left = Path(killed.stdout.decode().strip()).parent
    assert left.name.startswith("observatory-tree-")
    with unpacked(archive) as tree:
        wait_until(lambda: not left.exists())
        sweep()
        assert (tree / "bench").is_dir()
