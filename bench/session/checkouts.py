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
DESCRIBE_S = 120.0
"""How long a checkout may take to describe itself; it does not load torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A source tree. folder: its path. name: as the user gave it. commit: its hash, if the user named a commit."""

    folder: Path
    name: str
    commit: str | None = None

    @property
    def title(self) -> str:
        """The checkout's name in a message."""
        return f"checkout {self.name}" if self.commit is None else f"commit {self.commit[:12]}"


@contextmanager
def check_out(text: str, source: Path = SOURCE) -> Iterator[Checkout]:
    """Yield the source tree that the user names; a commit is checked out to a folder that is removed afterwards.

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
    commit = _commit(text, source)
    with tempfile.TemporaryDirectory(prefix="observatory-checkout-") as place:
        tree = Path(place) / "tree"
        _git(source, "worktree", "add", "--detach", "--force", str(tree), commit)
        try:
            yield Checkout(folder=tree, name=text, commit=commit)
        finally:
            with suppress(InfrastructureFailed):  # The folder is removed anyway; git forgets it at its next prune.
                _git(source, "worktree", "remove", "--force", str(tree))


def _commit(text: str, source: Path) -> str:
    """Return the full hash of a commit.

    Raises:
        Misuse: the repository has no such commit, or there is no repository.
    """
    if not (source / ".git").exists():
        raise Misuse(f'"{text}" is not a folder, and this program does not run from a git tree; name a folder')
    try:
        return _git(source, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
    except InfrastructureFailed:
        raise Misuse(
            f'"{text}" is neither a folder nor a commit of this source tree; `git log` there lists its commits'
        ) from None


def _git(source: Path, *words: str) -> str:
    try:
        process = subprocess.run(
            ["git", "-C", str(source), *words], check=True, capture_output=True, text=True, timeout=DESCRIBE_S
        )
    except subprocess.CalledProcessError as error:
        error_lines = error.stderr.strip().splitlines()
        raise InfrastructureFailed(
            f"git {words[0]} failed: {error_lines[-1] if error_lines else f'code {error.returncode}'}"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureFailed(f"git {words[0]} failed: {error}") from None
    return process.stdout.strip()


# Whether a checkout's ranks can measure a case that this program orders.

_QUESTION = """
import json, sys
import bench
from bench.engines.wire.frames import PROTOCOL
from workloads.registry import SPECS
strategy, device = sys.argv[1:]
specs = [spec for spec in SPECS if spec.name == strategy]
print(json.dumps({
    "folder": str(bench.__path__[0]),
    "protocol": PROTOCOL,
    "version": specs[0].version_on(device) if specs else None,
    "options": {option.name: option.default for option in specs[0].options} if specs else {},
}))
"""


class _CheckoutFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A checkout's description of itself. version: of the strategy's definition; None if it lacks the strategy."""

    folder: str
    protocol: int
    version: int | None
    options: dict[str, bool | int | float | str]


def check_checkout(checkout: Checkout, case: Case) -> None:
    """Refuse a checkout whose ranks would not measure what this program means by the case.

    Raises:
        Misuse: the checkout cannot be run, speaks another protocol, or lacks the strategy, its definition or an option.
    """
    answer = _ask(checkout, case)
    if Path(answer.folder).resolve().parent != checkout.folder:
        raise Misuse(f"{checkout.title}: Python imports bench from {answer.folder} instead of {checkout.folder}")
    if answer.protocol != PROTOCOL:
        raise Misuse(
            f"{checkout.title} speaks protocol {answer.protocol} between runner and agent, this program {PROTOCOL};"
            " run `observatory compare` from a tree between the two, or compare two runs of the history"
        )
    if answer.version is None:
        raise Misuse(f"{checkout.title} has no strategy {case.strategy}")
    if answer.version != case.version:
        raise Misuse(
            f"{checkout.title} has version {answer.version} of the definition of {case.strategy}, this program has"
            f" version {case.version}: different versions cannot be compared"
        )
    unknown = sorted(answer.options.keys() - case.options.keys())
    if unknown:
        raise Misuse(f"{checkout.title}: its {case.strategy} has an option {unknown[0]} that this program lacks")
    usual = {option.name: option.default for option in known_options(case.strategy)}
    lacking = [name for name in case.options.keys() - answer.options.keys() if case.options[name] != usual[name]]
    if lacking:
        raise Misuse(f"{checkout.title}: its {case.strategy} has no option {min(lacking)}; leave it at its default")


def _ask(checkout: Checkout, case: Case) -> _CheckoutFacts:
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-c", _QUESTION, case.strategy, case.device],
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
        return msgspec.convert(json.loads(process.stdout), _CheckoutFacts)
    except (subprocess.TimeoutExpired, ValueError) as error:
        if isinstance(error, Misuse):
            raise
        raise Misuse(f"{checkout.title} cannot describe itself: {error}") from None
