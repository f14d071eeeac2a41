"""The stack from `up` to `down`: starts, records, checks and removes its servers.

Each server is recorded in the state file before the next one is started, so that `down` finds all servers of an `up`
that was killed.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from bench.errors import InfrastructureFailed, Misuse
from bench.report.format import readable
from bench.serve.stack import compose, processes
from bench.serve.stack.files import ALERTMANAGER, LOOPBACK, TARGETS, files, grafana_ini, web_file
from bench.serve.stack.passwords import FOLDER as PASSWORDS
from bench.serve.stack.passwords import Passwords, read, read_or_new, write
from bench.serve.stack.processes import LOGS, Server, ServerProcess, is_running, strays, uninterrupted
from bench.serve.stack.settings import StackSettings
from bench.store.files import read_small
from collectors.files import DRAFTS, READABLE, make_folder, replace_file, schema_version_of, try_lock
from collectors.sockets import CannotListen, holder_of, listen, uids_at
from dashboards.publishing.publish import RENDERED

SCHEMA_VERSION = 1
STATE = "state.json"
DATA = "data"
DATA_MARK = "made-by-observatory-stack"
"""A file next to the servers' data that identifies it as ours after the state file is gone."""
_IN_DATA = ("prometheus", "alertmanager", "grafana", PASSWORDS.name, DATA_MARK)
"""The mark is last, so that it is deleted last, and a second `down` can continue."""
_GRAFANA_INI = "grafana.ini"
FEATURES = "exemplar-storage"
"""What Prometheus stores only on request. A newer Prometheus always stores it, and prints that."""


class StackState(msgspec.Struct, frozen=True, kw_only=True):
    """A stack that was started.

    processes: in the order of their start. urls: the servers' addresses, by name. is_compose: whether Prometheus,
    Alertmanager and Grafana are containers. made: names at the top of the folder that `down` deletes in addition to the
    data. made_folders: the folder and its parents that did not exist, innermost first.
    """

    schema_version: int = SCHEMA_VERSION
    begun_ns: int
    made: tuple[str, ...]
    made_folders: tuple[str, ...]
    urls: dict[str, str]
    is_compose: bool = False
    processes: tuple[ServerProcess, ...] = ()

    @property
    def prometheus_url(self) -> str:
        return self.urls["prometheus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """A stack to start.

    folder: for everything that the stack writes. target_folders: folders of other nodes' target files (file_sd).
    agent_environment: variables by which the agent finds runs and history.
    """

    folder: Path
    settings: StackSettings
    has_agent: bool = False
    has_demo: bool = False
    target_folders: tuple[Path, ...] = ()
    agent_environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def agents(self) -> dict[str, int]:
        """Ports of the stack's own agents, by name."""
        names = (*(("agent",) if self.has_agent else ()), *(("demo",) if self.has_demo else ()))
        return {name: getattr(self.settings, name).port for name in names}


Programs = Mapping[str, tuple[str, ...]]
"""The beginning of each installed server's command line, by name."""


def installed() -> Programs:
    """Return the programs on the PATH; Debian's Alertmanager and older Grafanas have other names."""
    commands = (
        ("grafana", "grafana-server"),
        ("grafana", "grafana", "server"),
        ("alertmanager", "prometheus-alertmanager"),
        ("alertmanager", "alertmanager"),
        ("prometheus", "prometheus"),
    )
    return {name: (path, *words) for name, program, *words in commands if (path := shutil.which(program)) is not None}


def up(plan: StackPlan, programs: Programs, *, on_notice: Callable[[str], None]) -> StackState:
    """Start the stack and wait until each server is ready; a start that fails or is interrupted is undone.

    Raises:
        Misuse: a stack is up there, the folder has other files, or containers cannot read the targets.
        InfrastructureFailed: programs are missing, a port is taken, or a server does not start.
    """
    missing = [name for name in ("prometheus", "alertmanager") if name not in programs]
    uses_compose = bool(missing)
    if uses_compose:
        compose.check(missing, plan.target_folders)
    _check_folder(plan.folder)
    names = [name for name in ("alertmanager", "prometheus", "grafana") if uses_compose or name in programs]
    ports = plan.agents | {name: getattr(plan.settings, name).port for name in names}
    for name, port in ports.items():
        try:
            listen(LOOPBACK, port).close()
        except CannotListen as error:
            raise InfrastructureFailed(
                f"{name}: {error}; end that program, or set another port: {name}.port in a file for --config"
            ) from None
    made_folders = tuple(str(path) for path in (plan.folder, *plan.folder.parents) if not path.exists())
    make_folder(plan.folder.parent)
    plan.folder.mkdir(mode=0o700, exist_ok=True)
    plan.folder.chmod(0o700)  # Its files have passwords.
    if uses_compose:
        os.umask(READABLE)  # Containers read its files as other users.
    with _alone(plan.folder):
        _check_folder(plan.folder)  # Checked again, because another `up` may have been faster.
        had_data = (plan.folder / DATA).is_dir()
        passwords = read_or_new(plan.folder)
        servers = [*_agents(plan), *([] if uses_compose else _servers(plan, programs, passwords))]
        texts = _texts(plan, passwords, uses_compose=uses_compose, has_grafana="grafana" in programs)
        state = StackState(
            begun_ns=time.time_ns(),
            made=(*sorted({path.parts[0] for path in texts}), LOGS),
            made_folders=made_folders,
            urls={name: f"http://{LOOPBACK}:{port}" for name, port in ports.items()},
            is_compose=uses_compose,
        )
        try:
            with uninterrupted():
                _write(plan.folder, state, texts, passwords)
            for server in servers:
                with uninterrupted():
                    process = processes.start(server, plan.folder)
                    state = msgspec.structs.replace(state, processes=(*state.processes, process))
                    _record(plan.folder, state)
                on_notice(f"{server.name} starts at {process.url}")
            if uses_compose:
                compose.up(plan.folder, on_notice=on_notice)
            for server, process in zip(servers, state.processes, strict=True):
                processes.wait_until_ready(server, process)
        except BaseException:
            with uninterrupted():
                on_notice("not all servers started; ending those that did")
                _take_down(plan.folder, state, keeps_data=had_data)
            raise
    return state


def _texts(plan: StackPlan, passwords: Passwords, *, uses_compose: bool, has_grafana: bool) -> dict[Path, str]:
    """Return the text of each file that the servers read."""
    texts = files(
        plan.settings,
        {name: f"{LOOPBACK}:{port}" for name, port in plan.agents.items()},
        plan.target_folders,
        passwords,
        dashboards=compose.DASHBOARDS_WITHIN if uses_compose else RENDERED,
    )
    if uses_compose:
        texts[Path(compose.ENVIRONMENT)] = compose.environment(plan.settings, plan.folder)
    elif has_grafana:
        texts[Path(_GRAFANA_INI)] = grafana_ini(plan.settings, plan.folder, passwords)
    return texts


def _servers(plan: StackPlan, programs: Programs, passwords: Passwords) -> list[Server]:
    """Return Alertmanager and Prometheus, and Grafana if it is installed."""
    folder, settings = plan.folder, plan.settings
    servers = [
        Server(
            name="alertmanager",
            port=settings.alertmanager.port,
            ready="/-/ready",
            command=(
                *programs["alertmanager"],
                f"--config.file={folder / ALERTMANAGER}",
                f"--storage.path={folder / DATA / 'alertmanager'}",
                f"--web.config.file={folder / web_file('alertmanager')}",
                f"--web.listen-address={LOOPBACK}:{settings.alertmanager.port}",
                "--cluster.listen-address=",  # Otherwise it listens for peers on all addresses.
            ),
            password=passwords.alertmanager,
        ),
        Server(
            name="prometheus",
            port=settings.prometheus.port,
            ready="/-/ready",
            command=(
                *programs["prometheus"],
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / DATA / 'prometheus'}",
                f"--storage.tsdb.retention.time={settings.prometheus.retention_days}d",
                f"--web.config.file={folder / web_file('prometheus')}",
                f"--web.listen-address={LOOPBACK}:{settings.prometheus.port}",
                f"--enable-feature={FEATURES}",
            ),
            password=passwords.prometheus,
        ),
    ]
    if "grafana" in programs:
        # Grafana's own files are next to its program if it comes from an archive, and elsewhere if from a package.
        homes = (Path(programs["grafana"][0]).resolve().parents[1], Path("/usr/share/grafana"))
        home = [f"--homepath={home}" for home in homes if (home / "public").is_dir()][:1]
        command = (*programs["grafana"], f"--config={folder / _GRAFANA_INI}", *home)
        servers.append(Server(name="grafana", port=settings.grafana.port, ready="/api/health", command=command))
    return servers


def _agents(plan: StackPlan) -> list[Server]:
    words = (sys.executable, "-P", "-m", "bench", "serve", "--host", LOOPBACK, "--port")
    return [
        Server(
            name=name,
            port=port,
            ready="/healthz",
            command=(*words, str(port), *(("--demo",) if name == "demo" else ())),
            environment={} if name == "demo" else plan.agent_environment,
        )
        for name, port in plan.agents.items()
    ]


def _check_folder(folder: Path) -> None:
    """Check that a new stack can be started in the folder.

    Raises:
        Misuse: it cannot.
    """
    if folder.exists() and folder.stat().st_uid != os.geteuid():
        raise Misuse(f"{folder} belongs to another user; name a folder of yours, or a new one, with --folder")
    state = read_state(folder)
    if state is not None:
        gone = [process.name for process in ended(state)]
        if gone and running(folder, state):
            raise Misuse(
                f"a stack is up in {folder}, of which {' and '.join(gone)} ended; `observatory stack down --keep-data`"
                " ends the rest, and the next `up` continues with its data"
            )
        if state.is_compose or running(folder, state):
            raise Misuse(
                f"a stack is up already, with Prometheus at {state.prometheus_url} ({folder}); `observatory stack down`"
                " ends it, and --folder with a --config of other ports starts another"
            )
        raise Misuse(
            f"{folder} holds a stack whose servers have all ended; `observatory stack down --keep-data` clears it, and"
            " the next `up` continues with its data"
        )
    for place, known in ((folder, (DATA,)), (folder / DATA, _IN_DATA)):
        others = sorted(path.name for path in place.iterdir() if path.name not in known) if place.is_dir() else []
        if others:
            raise Misuse(
                f"{place} holds {others[0]}, which does not belong to a stack; name an empty folder, or a new one"
            )


def _write(folder: Path, state: StackState, texts: Mapping[Path, str], passwords: Passwords) -> None:
    """Write the state, the servers' folders and files, and their passwords."""
    _record(folder, state)
    for name in (LOGS, TARGETS, f"{DATA}/prometheus", f"{DATA}/alertmanager"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if not state.is_compose:  # Containers have their data in Docker's volumes.
        replace_file(folder / DATA / DATA_MARK, b"")
    mode = 0o644 if state.is_compose else 0o600
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        replace_file(folder / path, text.encode(), mode=mode)
    write(folder, passwords, mode=mode)


def _record(folder: Path, state: StackState) -> None:
    document = msgspec.json.format(msgspec.json.encode(state))
    replace_file(folder / STATE, document, mode=0o600)


def read_state(folder: Path) -> StackState | None:
    """Return the stack that was started in this folder; None if there is none.

    Raises:
        Misuse: its file is from a newer program, or damaged.
    """
    path = folder / STATE
    try:
        document = read_small(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if (version := schema_version_of(document)) > SCHEMA_VERSION:
            raise Misuse(f"{path} was written by a newer program (schema_version {version}); use that one")
        return msgspec.json.decode(document, type=StackState)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Misuse(
            f"{path} is damaged; end the servers that still run by hand (their logs are in {folder / LOGS}), then"
            f" delete {folder}"
        ) from None


def prometheus_password(folder: Path, state: StackState) -> str:
    """Return the password of the folder's Prometheus, after checking that no other user's program would receive it.

    Raises:
        Misuse: its file is missing, or others can change it.
        InfrastructureFailed: another user's program has the port.
    """
    port = urlsplit(state.prometheus_url).port or 0
    # Prometheus in a container runs as another user.
    if not state.is_compose and uids_at(LOOPBACK, port) - {os.geteuid()}:
        raise InfrastructureFailed(f"port {port} of the stack's prometheus is taken by {holder_of(LOOPBACK, port)}")
    return read(folder, "prometheus")


def down(folder: Path, *, keeps_data: bool, on_notice: Callable[[str], None]) -> None:
    """End the folder's stack and delete its files; without a stack, delete kept data.

    Raises:
        Misuse: there is nothing to end or delete, or another `up` or `down` is running.
        InfrastructureFailed: a server does not end, or something cannot be deleted; the rest is done, and a second
            call continues.
    """
    size = readable(sum(path.lstat().st_size for path in (folder / DATA).rglob("*") if path.is_file()), "bytes")
    state = read_state(folder)
    if state is None:
        _down_without_state(folder, size, keeps_data=keeps_data, on_notice=on_notice)
        return
    parts = [*map(words_of, running(folder, state)), *["the containers"] * state.is_compose]
    if parts:
        on_notice(f"ending {', '.join(parts)}")
    if not keeps_data:
        on_notice(f"deleting {folder} with {size} of data")
    elif state.is_compose:
        on_notice("keeping the containers' volumes for the next `up`; `docker volume ls` shows them")
    else:
        on_notice(f"keeping {size} of data in {folder} for the next `up`; another `down` deletes it")
    with _alone(folder), uninterrupted():
        _take_down(folder, state, keeps_data=keeps_data)


def _down_without_state(folder: Path, size: str, *, keeps_data: bool, on_notice: Callable[[str], None]) -> None:
    """End the servers of a folder whose state file is gone, or delete the data that an earlier `down` kept."""
    if servers := strays(folder, ()):
        on_notice(f"ending {', '.join(map(words_of, servers))}, of a stack without its state.json")
        with uninterrupted():
            _end(servers, folder)
        on_notice(f"its remaining files are in {folder}; delete that folder if nobody needs them")
        return
    if not (folder / DATA / DATA_MARK).is_file():
        raise Misuse(nothing_is_up(folder))
    if keeps_data:
        raise Misuse(f"no stack is up, and {folder} keeps {size} of data; leave out --keep-data to delete it")
    on_notice(f"no stack is up; deleting {size} of data kept in {folder}")
    with _alone(folder), uninterrupted():
        if read_state(folder) is not None:
            raise Misuse(f"a stack was started in {folder} in the meantime; call `down` again to end it")
        _delete_data(folder)
        with suppress(OSError):  # It has other files.
            folder.rmdir()


def nothing_is_up(folder: Path) -> str:
    """Return the message about a folder without a stack."""
    return f"no stack is up in {folder}; `observatory stack up` starts one, and --folder names another"


def words_of(process: ServerProcess) -> str:
    """Return name and number of a process, for messages."""
    return f"{process.name} (process {process.pid})"


def _take_down(folder: Path, state: StackState, *, keeps_data: bool) -> None:
    if state.is_compose:
        compose.down(folder, keeps_data=keeps_data)
    _end([*state.processes, *strays(folder, state.processes)], folder)
    for name in state.made:
        _delete(folder / name)
    if not keeps_data:
        _delete_data(folder)
    for path in (folder / STATE, *folder.glob(DRAFTS)):  # A killed `up` may leave drafts.
        path.unlink(missing_ok=True)
    for parent in dict.fromkeys((str(folder), *state.made_folders)):
        with suppress(OSError):  # It has kept data, or other files.
            Path(parent).rmdir()


def _end(servers: Sequence[ServerProcess], folder: Path) -> None:
    if survivors := processes.end(servers):
        names = ", ".join(map(words_of, survivors))
        raise InfrastructureFailed(
            f"{names} {'does' if len(survivors) == 1 else 'do'} not end, even when killed; the files in {folder} stay"
        )


def _delete_data(folder: Path) -> None:
    for name in _IN_DATA:
        _delete(folder / DATA / name)
    with suppress(OSError):  # It is missing, or has other files.
        (folder / DATA).rmdir()


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder for one `up` or `down`.

    Raises:
        Misuse: another has it.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not try_lock(fd):
            raise Misuse(f"another `observatory stack` is working in {folder}; wait until it has ended")
        yield
    finally:
        os.close(fd)


def running(folder: Path, state: StackState) -> list[ServerProcess]:
    """Return the running servers of the folder's stack."""
    return [*filter(is_running, state.processes), *strays(folder, state.processes)]


def ended(state: StackState) -> Sequence[ServerProcess]:
    """Return the servers that ended without `down`."""
    return [process for process in state.processes if not is_running(process)]
