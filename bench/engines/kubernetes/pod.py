"""The program of a suite's pod: the first pod runs the suite, and the others run an agent for each engine in turn.

Started as `python -P -m bench.engines.kubernetes.pod --node "$JOB_COMPLETION_INDEX" ... -- WORDS`; the words are those
of `observatory suite run`. An agent ends with its engine, and a suite may open several engines; the runner keeps
listening in between. When it no longer listens, the suite has ended; the pod then ends with success, because the first
pod reports how the suite ended. Loads neither torch nor the modules of a suite.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from bench.engines.kubernetes.engine import COMING_S
from bench.engines.kubernetes.settings import PodSettings
from bench.engines.node.agent import UNREACHED
from bench.engines.wire.frames import Refused, read_key
from bench.engines.wire.tcp import address_of
from bench.errors import Misuse, say
from collectors.files import PRIVATE, drafted, is_ours, make_folder, read_regular, replace_file, write_named

FINE, MISUSE, INFRASTRUCTURE, ENDED = 0, 2, 4, 143
"""Exit codes: those of `observatory` (2 makes the JobSet fail at once), and that of a process ended by SIGTERM."""
AGAIN_S = 2.0
"""Time between two agents, in which the runner ends the first agent's engine."""
GONE_S = 10.0
"""How long the runner may be unreachable after the first contact; it listens for the whole suite."""
KEY, SETTINGS = "key", "pod.toml"
"""Files in the pod's own folder."""
_STAMP = "%Y%m%d-%H%M%S"
"""The beginning of a suite run's ID, as `bench.suite.folder` makes it."""


def main() -> NoReturn:
    """Run the pod's part of a suite, and exit with the pod's exit code."""
    parser = argparse.ArgumentParser(
        prog="pod", description="A pod of a suite, as `observatory suite render` writes it."
    )
    parser.add_argument("--node", type=int, required=True, help="this pod's number; 0 runs the suite")
    parser.add_argument(
        "--connect", type=address_of, required=True, metavar="HOST:PORT", help="address of the first pod"
    )
    parser.add_argument("--address", required=True, help="this pod's address, as the others reach it")
    parser.add_argument("--secret", type=Path, required=True, metavar="FILE", help="file with the suite's key")
    parser.add_argument(
        "--own", type=Path, required=True, metavar="FOLDER", help="private in-memory folder of this pod"
    )
    parser.add_argument("--suite", required=True, help="the suite's name")
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER", help="folder of the results")
    parser.add_argument("--job", default="", help="identity of the JobSet, by which a restart finds its suite run")
    parser.add_argument("words", nargs="+", help="arguments of `observatory suite run`")
    options = parser.parse_args()
    os.umask(PRIVATE)
    host, port = options.connect
    try:
        key_file = own_key(options.secret, options.own)
        if options.node > 0:
            signal.signal(signal.SIGTERM, _end)
            words = ["--connect", f"{host}:{port}", "--key-file", str(key_file), "--node", str(options.node)]
            sys.exit(attend([sys.executable, "-P", "-m", "bench.engines.node.agent", *words, "--send-files"]))
        pods = host.partition(".")[0].removesuffix("-0")
        settings = PodSettings(key_file=str(key_file), address=options.address, port=port, pods=pods)
        file = options.own / SETTINGS
        write_named(file, settings.as_toml().encode())
        words = [*options.words, "--runs", str(options.runs), "--engine", "kubernetes", "--engine-file", str(file)]
        if (begun := suite_run_to_resume(options.runs, options.suite, options.job)) is not None:
            words += ["--resume", begun]
    except Misuse as error:
        say(f"pod {options.node}: {error}")
        sys.exit(MISUSE)
    except OSError as error:
        say(f"pod {options.node}: {error}")
        sys.exit(INFRASTRUCTURE)
    sys.stderr.flush()
    # The suite takes this process's place: it gets its signals and determines its exit code.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "bench", "suite", "run", *words])


def own_key(secret: Path, folder: Path) -> Path:
    """Copy the key to a file that only this user can read; return its path.

    A Secret's file belongs to root and is readable by the pod's group, which `read_key` refuses.

    Raises:
        Misuse: there is no key.
        OSError: the file cannot be written.
    """
    try:
        content = read_regular(secret)
    except OSError as error:
        raise Misuse(
            f"the suite's key cannot be read from {secret} ({error.strerror}); the Secret needs an entry named"
            f" {secret.name} that the pod's user can read"
        ) from None
    path = folder / KEY
    with drafted(path, mode=0o600, is_any_folder=True) as file:
        file.write(content)
    try:
        read_key(path)
    except Refused as error:
        raise Misuse(f"the Secret's file {secret} cannot be used: {error}") from None
    return path


def attend(agent: Sequence[str], *, within_s: float = COMING_S, clock_s: Callable[[], float] = time.monotonic) -> int:
    """Run agents one after another until the suite has ended; return the pod's exit code.

    within_s: how long the first contact with the runner may take.
    """
    is_met, deadline_s = False, clock_s() + within_s
    while True:
        code = _run([*agent, "--within", f"{GONE_S:g}"] if is_met else agent)
        if code != UNREACHED:
            is_met = True
            time.sleep(AGAIN_S)
        elif is_met:
            say("the runner no longer listens: the suite or the first pod has ended")
            return FINE
        elif clock_s() >= deadline_s:
            say(f"the first pod did not answer within {within_s:g} s; it may be waiting for a node")
            return INFRASTRUCTURE


def _run(agent: Sequence[str]) -> int:
    """Run an agent to its end; return its exit code. If this process is ended, so is the agent."""
    with subprocess.Popen(agent, stdin=subprocess.DEVNULL) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            raise


def _end(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(ENDED)


def suite_run_to_resume(runs: Path, suite: str, job: str, *, now_s: float | None = None) -> str | None:
    """Return the ID of the suite run that this JobSet began before a restart; None if there is none.

    A file named after the JobSet's identity, next to the runs, records its first start, so that suite runs of other
    JobSets are not resumed.

    job: the JobSet's identity; if it is empty, each start begins a new suite run.

    Raises:
        OSError: the volume cannot be written.
    """
    if not job:
        say("the pod does not know its JobSet, so a restart begins a new suite run")
        return None
    path = runs.parent / "jobsets" / job
    if not path.exists():
        make_folder(path.parent)
        replace_file(path, time.strftime(_STAMP, time.gmtime(now_s)).encode())
        return None
    since = read_regular(path).decode("ascii")
    ledgers = (runs / "suites").glob(f"*-{suite}-*/ledger.jsonl")
    begun = (ledger for ledger in ledgers if is_ours(ledger.parent) and ledger.stat().st_size)
    names = sorted(ledger.parent.name for ledger in begun)
    names_of_suite = [name for name in names if name >= since and name[len(since) + 1 :].rpartition("-")[0] == suite]
    return names_of_suite[-1] if names_of_suite else None


if __name__ == "__main__":
    main()
