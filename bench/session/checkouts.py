"""Another source tree of this program whose ranks measure one side of a comparison: a folder, or a commit."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from bench.case import Case, known_options, options_set, written
from bench.engines.local import environment_of
from bench.engines.node.tree_folder import unpacked
from bench.engines.wire.frames import SPOKEN
from bench.engines.wire.trees import RankTree
from bench.errors import InfrastructureFailed, Misuse

SOURCE = Path(__file__).parents[2]
"""The source tree that this program runs from."""
PACKAGES = ("bench", "collectors", "dashboards", "workloads")
"""The packages of a tree that are run."""
BUILT_FROM = "bench/machine/built_from.json"
"""File in which hatch_build.py stores the commit of a package without a git tree."""
DESCRIBE_S = 120.0
"""Time limit of a checkout's description of itself, which does not load torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A source tree.

    folder: its path. name: as the user gave it. commit: its hash, if the user named a commit; archive is then the tree
    in the form that nodes receive.
    """

    folder: Path
    name: str
    commit: str | None = None
    archive: bytes | None = None

    @property
    def title(self) -> str:
        """The checkout's name in a message."""
        return f"checkout {self.name}" if self.commit is None else f"commit {self.commit[:12]}"


@contextmanager
def check_out(text: str, source: Path = SOURCE) -> Iterator[Checkout]:
    """Yield the source tree that the user names; a commit is unpacked to a folder that is removed afterwards.

    text: a folder with the packages, or a commit in the repository of `source`.

    Raises:
        Misuse: the text is neither.
        InfrastructureFailed: the commit cannot be checked out.
    """
    folder = Path(text)
    if folder.is_dir():
        if not (folder / "bench" / "__init__.py").is_file():
            raise Misuse(
                f"{folder} is not a source tree of this program: bench/__init__.py is missing; name its top folder"
            )
        yield Checkout(folder=folder.resolve(), name=text)
        return
    if not (source / ".git").exists():
        raise Misuse(f'"{text}" is not a folder, and this program does not run from a git tree; name a folder')
    try:
        commit = git(source, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
    except InfrastructureFailed:
        raise Misuse(
            f'"{text}" is neither a folder nor a commit of this source tree; `git log` there lists its commits'
        ) from None
    archive = archive_of(source, commit)
    with unpacked(archive) as tree:
        yield Checkout(folder=tree, name=text, commit=commit, archive=archive)


# Commits of a repository


def find_repository(
    named: Path | None,
    source: Path = SOURCE,
    recorded_by_pip: Callable[[], Path | None] = lambda: recorded_repository(),
) -> Path:
    """Return the repository that has this program's commits.

    named: by the user. Without it: `source`, from which this program runs, if it is a git tree; otherwise the folder
    that pip recorded when it installed the package.

    Raises:
        Misuse: there is no repository.
        Misuse: there is none.
    """
    if named is not None:
        if not named.is_dir() or not _is_repository(named):
            raise Misuse(f"--repository {named} is not a git repository; name the folder of a clone of this program")
        return named
    if (source / ".git").exists():
        return source
    recorded = recorded_by_pip()
    if recorded is None or not _is_repository(recorded):
        was = "pip recorded no source folder" if recorded is None else f"{recorded}, which pip recorded, is not one now"
        raise Misuse(
            f"this program is installed without a git repository ({was}); name a clone of it with --repository"
        )
    return recorded


def recorded_repository() -> Path | None:
    """Return the folder that pip recorded as the package's source (PEP 610); None if there was no folder."""
    try:
        text = metadata.distribution("parallel-observatory").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    try:
        parts = urlsplit(json.loads(text or "{}").get("url", ""))
    except (ValueError, AttributeError):
        return None
    return Path(unquote(parts.path)) if parts.scheme == "file" and Path(unquote(parts.path)).is_dir() else None


def _is_repository(folder: Path) -> bool:
    if shutil.which("git") is None:
        raise Misuse("git is not on the PATH, and earlier commits are read with it; install git")
    try:
        return bool(git(folder, "rev-parse", "--git-dir"))
    except InfrastructureFailed:
        return False


def require_commit(repository: Path, commit: str) -> str:
    """Return the full hash of a commit that the history names.

    Raises:
        Misuse: the repository lacks it.
    """
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    except InfrastructureFailed:
        pass
    if git(repository, "rev-parse", "--is-shallow-repository") == "true":
        reason = "is a shallow clone; `git fetch --unshallow` there gets it if it still exists"
    else:
        reason = "lacks it: it was force-pushed away, or never pushed; fetch it there, or name another --repository"
    raise Misuse(f"commit {commit[:12]} is gone: {repository} {reason}")


def archive_of(repository: Path, commit: str) -> bytes:
    """Return the packages of a commit as a compressed tar archive, with the commit recorded as in an installed package.

    The same commit always gives the same bytes.

    Raises:
        InfrastructureFailed: git cannot read the commit, or it has no such packages.
    """
    has = git(repository, "ls-tree", "--name-only", commit).splitlines()
    packages = [name for name in PACKAGES if name in has]
    if "bench" not in packages:
        raise InfrastructureFailed(
            f"commit {commit[:12]} of {repository} is not a tree of this program: it has no bench/"
        )
    tar = io.BytesIO(_git_bytes(repository, "archive", "--format=tar", commit, "--", *packages))
    with tarfile.open(fileobj=tar, mode="a") as archive:
        record = json.dumps({"commit": commit, "is_dirty": False}).encode()
        about = tarfile.TarInfo(BUILT_FROM)
        about.size = len(record)
        archive.addfile(about, io.BytesIO(record))
    return gzip.compress(tar.getvalue(), compresslevel=1, mtime=0)


def git(source: Path, *words: str) -> str:
    """Return the output of a git command.

    Raises:
        InfrastructureFailed: the command fails.
    """
    return _git_bytes(source, *words).decode(errors="replace").strip()


def _git_bytes(source: Path, *words: str) -> bytes:
    # Whoever names a repository runs its code anyway, so another user's repository adds no danger.
    command = ["git", "-c", f"safe.directory={source.resolve()}", "--no-optional-locks", "-C", str(source), *words]
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=DESCRIBE_S).stdout
    except subprocess.CalledProcessError as error:
        error_lines = error.stderr.decode(errors="replace").strip().splitlines()
        raise InfrastructureFailed(
            f"git {words[0]} failed: {error_lines[-1] if error_lines else f'code {error.returncode}'}"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureFailed(f"git {words[0]} failed: {error}") from None


# Whether a checkout's ranks can measure a case that this program orders

_FACTS = ("-P", "-m", "bench.engines.node.tree_facts")
_BEFORE_CONTRACT = """
import json, sys
import bench
from bench.engines.wire.frames import PROTOCOL
from workloads.registry import SPECS
strategy, device = sys.argv[1:]
specs = [spec for spec in SPECS if spec.name == strategy]
print(json.dumps({
    "contract": 0,
    "folder": str(bench.__path__[0]),
    "protocol": PROTOCOL,
    "version": specs[0].version_on(device) if specs else None,
    "options": {option.name: option.default for option in specs[0].options} if specs else {},
}))
"""
"""Script that describes trees without `bench.engines.node.tree_facts`: old commits, which no longer change."""


class TreeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A tree's description of itself, see `bench.engines.node.tree_facts`. Contract 0: before the first one."""

    contract: int
    folder: str
    protocol: int
    version: int | None
    options: dict[str, bool | int | float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTree:
    """A checkout that can measure a case. case: as the tree is ordered to run it, without options that it lacks."""

    tree: RankTree
    case: Case


def check_checkout(checkout: Checkout, case: Case) -> CheckedTree:
    """Return the tree that measures the case; refuse a tree whose ranks would measure something else.

    Raises:
        Misuse: the checkout cannot be run, speaks an unknown protocol, or lacks the strategy, its definition or an
            option.
    """
    facts = _ask(checkout, case)
    if Path(facts.folder).resolve().parent != checkout.folder.resolve():
        raise Misuse(f"{checkout.title}: Python imports bench from {facts.folder} instead of {checkout.folder}")
    if facts.protocol not in SPOKEN:
        protocols = " and ".join(map(str, sorted(SPOKEN)))
        raise Misuse(
            f"{checkout.title} speaks protocol {facts.protocol} between runner and agent, this program {protocols};"
            " measure from a tree between the two, or compare two runs of the history"
        )
    if facts.version is None:
        raise Misuse(f"{checkout.title} has no strategy {case.strategy}")
    if facts.version != case.version:
        raise Misuse(
            f"{checkout.title} has version {facts.version} of the definition of {case.strategy}, this program has"
            f" version {case.version}: different versions cannot be compared"
        )
    unknown = sorted(facts.options.keys() - case.options.keys())
    if unknown:
        raise Misuse(f"{checkout.title}: its {case.strategy} has an option {unknown[0]} that this program lacks")
    lacking = case.options.keys() - facts.options.keys()
    known, chosen = {option.name: option for option in known_options(case.strategy)}, options_set(case)
    for name in sorted(lacking):
        # A tree without an option whose default has changed measures what was the default before.
        before = known[name].before
        if name in chosen if before is None else case.options[name] != before:
            remedy = "leave it at its default" if before is None else f"use {name}={written(before)}"
            raise Misuse(f"{checkout.title}: its {case.strategy} has no option {name}; {remedy}")
    options = {name: value for name, value in case.options.items() if name not in lacking}
    tree = RankTree(folder=checkout.folder, protocol=facts.protocol, archive=checkout.archive, commit=checkout.commit)
    return CheckedTree(tree=tree, case=replace(case, options=options))


def _ask(checkout: Checkout, case: Case) -> TreeFacts:
    has_contract = (checkout.folder / "bench" / "engines" / "node" / "tree_facts.py").is_file()
    question = _FACTS if has_contract else ("-P", "-c", _BEFORE_CONTRACT)
    try:
        process = subprocess.run(
            [sys.executable, *question, case.strategy, case.device],
            env=environment_of(checkout.folder),
            capture_output=True,
            text=True,
            timeout=DESCRIBE_S,
        )
        if process.returncode:
            error_lines = process.stderr.strip().splitlines()
            raise Misuse(
                f"{checkout.title} cannot be run: {error_lines[-1] if error_lines else f'code {process.returncode}'}"
            )
        return msgspec.convert(json.loads(process.stdout), TreeFacts)
    except (subprocess.TimeoutExpired, ValueError) as error:
        if isinstance(error, Misuse):
            raise
        raise Misuse(f"{checkout.title} cannot describe itself: {error}") from None
