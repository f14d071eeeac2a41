"""Another source tree of this program, whose ranks measure one side of a comparison: a folder, or a commit."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.case import Case, known_options
from bench.engines.local import environment_of
from bench.engines.wire.frames import PROTOCOL
from bench.errors import InfrastructureFailed, Misuse

SOURCE = Path(__file__).parents[2]
"""The source tree that this program runs from."""
ASKED_S = 120.0
"""How long a checkout may take to tell what it is; it loads no torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A source tree. folder: where it lies. name: as a person gave it. commit: which one, where that was named."""

    folder: Path
    name: str
    commit: str | None = None

    @property
    def title(self) -> str:
        """What a message calls it."""
        return f"checkout {self.name}" if self.commit is None else f"commit {self.commit[:12]}"


@contextmanager
def check_out(text: str, source: Path = SOURCE) -> Iterator[Checkout]:
    """Give the source tree that a person names; a commit is checked out to a folder that is removed afterwards.

    text: a folder that holds the packages, or a commit of the repository of `source`.

    Raises:
        Misuse: it is neither.
        InfrastructureFailed: the commit cannot be checked out.
    """
    folder = Path(text)
    if folder.is_dir():
        if not (folder / "bench" / "__init__.py").is_file():
            raise Misuse(
                f"{folder} is no source tree of this program: bench/__init__.py is missing; name its top folder"
            )
        yield Checkout(folder=folder.resolve(), name=text)
        return
    commit = _commit(text, source)
    with tempfile.TemporaryDirectory(prefix="observatory-checkout-") as place:
        tree = Path(place) / "tree"
        _git(source, "worktree", "add", "--detach", "--force", str(tree), commit)
        try:
            yield Checkout(folder=tree, name=text, commit=commit)
        finally:
            with suppress(InfrastructureFailed):  # The folder goes all the same; git forgets it at its next prune.
                _git(source, "worktree", "remove", "--force", str(tree))


def _commit(text: str, source: Path) -> str:
    """Return the whole hash of a commit.

    Raises:
        Misuse: it is none of this repository, or there is no repository.
    """
    if not (source / ".git").exists():
        raise Misuse(f'"{text}" is no folder, and this program does not run from a git tree, so it knows no commits')
    try:
        return _git(source, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
    except InfrastructureFailed:
        raise Misuse(
            f'"{text}" is neither a folder nor a commit of this source tree; `git log` there lists its commits'
        ) from None


def _git(source: Path, *words: str) -> str:
    try:
        ended = subprocess.run(
            ["git", "-C", str(source), *words], check=True, capture_output=True, text=True, timeout=ASKED_S
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines()
        raise InfrastructureFailed(
            f"git {words[0]} failed: {said[-1] if said else f'code {error.returncode}'}"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureFailed(f"git {words[0]} failed: {error}") from None
    return ended.stdout.strip()


# Whether its ranks can measure a case that this program ordered.

_QUESTION = """
import json, sys
import bench
from bench.engines.wire.frames import PROTOCOL
from workloads.registry import SPECS
strategy, device = sys.argv[1:]
found = [spec for spec in SPECS if spec.name == strategy]
print(json.dumps({
    "folder": str(bench.__path__[0]),
    "protocol": PROTOCOL,
    "version": found[0].version_on(device) if found else None,
    "options": {option.name: option.default for option in found[0].options} if found else {},
}))
"""


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkout tells of itself. version: of the strategy's definition, None where it has no such strategy."""

    folder: str
    protocol: int
    version: int | None
    options: dict[str, bool | int | float | str]


def check_checkout(checkout: Checkout, case: Case) -> None:
    """Refuse a checkout whose ranks would not measure what this program means by the case.

    Raises:
        Misuse: it cannot be asked, speaks another protocol, or lacks the strategy, its definition or an option.
    """
    answer = _ask(checkout, case)
    if Path(answer.folder).resolve().parent != checkout.folder:
        raise Misuse(f"{checkout.title}: Python imports bench from {answer.folder}, and not from {checkout.folder}")
    if answer.protocol != PROTOCOL:
        raise Misuse(
            f"{checkout.title} speaks protocol {answer.protocol} between runner and agent, and this program {PROTOCOL};"
            " run `observatory compare` from a tree in between, or compare two runs of the history"
        )
    if answer.version is None:
        raise Misuse(f"{checkout.title} has no strategy {case.strategy}")
    if answer.version != case.version:
        raise Misuse(
            f"{checkout.title} has version {answer.version} of the definition of {case.strategy}, and this program"
            f" {case.version}: that is a new series, and cannot be compared"
        )
    unknown = sorted(answer.options.keys() - case.options.keys())
    if unknown:
        raise Misuse(f"{checkout.title}: {case.strategy} has the option {unknown[0]} there, which this program lacks")
    usual = {option.name: option.default for option in known_options(case.strategy)}
    lacking = [name for name in case.options.keys() - answer.options.keys() if case.options[name] != usual[name]]
    if lacking:
        raise Misuse(f"{checkout.title}: {case.strategy} has no option {min(lacking)} there; leave it at its default")


def _ask(checkout: Checkout, case: Case) -> _Answer:
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", _QUESTION, case.strategy, case.device],
            env=environment_of(checkout.folder),
            capture_output=True,
            text=True,
            timeout=ASKED_S,
        )
        if ended.returncode:
            said = ended.stderr.strip().splitlines()
            raise Misuse(f"{checkout.title} cannot be run: {said[-1] if said else f'code {ended.returncode}'}")
        return msgspec.convert(json.loads(ended.stdout), _Answer)
    except (subprocess.TimeoutExpired, ValueError) as error:
        if isinstance(error, Misuse):
            raise
        raise Misuse(f"{checkout.title} does not tell what it is: {error}") from None
