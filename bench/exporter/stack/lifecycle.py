"""The stack from `up` to `down`: what is started, written down, checked and taken away again.

What is started is in the state file before the next is, so that `down` finds all of a stack whose `up` was killed.
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
from bench.exporter.stack import compose
from bench.exporter.stack.files import ALERTMANAGER, LOOPBACK, TARGETS, files, grafana_ini, top_level, web_file
from bench.exporter.stack.passwords import FOLDER as PASSWORDS
from bench.exporter.stack.passwords import Passwords, authorization, kept_or_new, read, write
from bench.exporter.stack.processes import (
    ServerProcess,
    end,
    is_running,
    start,
    strays,
    uninterrupted,
    wait_until_ready,
)
from bench.exporter.stack.settings import StackSettings
from bench.runs.files import read_small
from collectors.files import DRAFTS, READABLE, make_folder, replace_file, schema_version_of, try_lock
from collectors.sockets import CannotListen, holder_of, listen, uids_at
from dashboards.publishing.publish import RENDERED

SCHEMA_VERSION = 1
STATE = "state.json"
DATA, LOGS = "data", "logs"
DATA_MARK = "made-by-observatory-stack"
"""A file beside the servers' data that says whose it is, after the state file is gone."""
_IN_DATA = ("prometheus", "alertmanager", "grafana", PASSWORDS.name, DATA_MARK)
_GRAFANA_INI = "grafana.ini"
FEATURES = "exemplar-storage"
"""What Prometheus keeps of ours only where it is told to: a newer one knows the first by itself, and says so."""


class StackState(msgspec.Struct, frozen=True, kw_only=True):
    """A stack that was started.

    processes: in the order of their start. urls: of all servers, by name. is_compose: whether Prometheus, Alertmanager
    and Grafana are containers. made: names at the top of the folder, which `down` deletes beside the data.
    made_folders: the folder and those above it that were not there, the innermost first.
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
        """Where Prometheus is asked."""
        return self.urls["prometheus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Where the servers' programs are; None for one that is not installed. grafana: as a command line begins."""

    prometheus: str | None
    alertmanager: str | None
    grafana: tuple[str, ...] | None

    @property
    def missing(self) -> list[str]:
        """Names of those without which the stack is no stack."""
        return [name for name in ("prometheus", "alertmanager") if getattr(self, name) is None]


def installed() -> Programs:
    """Return the programs that are on the PATH; Debian's name of Alertmanager is its own."""
    grafana = shutil.which("grafana")
    older_grafana = shutil.which("grafana-server")
    return Programs(
        prometheus=shutil.which("prometheus"),
        alertmanager=shutil.which("alertmanager") or shutil.which("prometheus-alertmanager"),
        grafana=(grafana, "server") if grafana else (older_grafana,) if older_grafana else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """A stack that is to be started.

    folder: of all that it writes. target_folders: others' files of targets (file_sd). agent_environment: what the
    agent finds runs and history by.
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
        return {
            **({"agent": self.settings.agent.port} if self.has_agent else {}),
            **({"demo": self.settings.demo.port} if self.has_demo else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """A server that is to be started. ready: the path at which it says that it is. has_password: whether it asks."""

    name: str
    port: int
    ready: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    has_password: bool = False

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


def up(plan: StackPlan, programs: Programs, *, tell: Callable[[str], None]) -> StackState:
    """Start the stack and wait until each server is ready; what fails or is interrupted half-way is taken down.

    tell: is told what goes on.

    Raises:
        Misuse: a stack is up there, the folder holds something else, or containers cannot read the targets.
        InfrastructureFailed: programs are missing, a port is taken, or a server does not start.
    """
    uses_compose = bool(programs.missing)
    if uses_compose:
        compose.check(programs.missing, plan.target_folders)
    _check_folder(plan.folder)
    own = [] if uses_compose else _own_servers(plan, programs)
    servers = [*_agents(plan), *own]
    ports = {server.name: server.port for server in servers} | (compose.ports(plan.settings) if uses_compose else {})
    for name, port in ports.items():
        _check_port(name, port)
    made_folders = tuple(str(path) for path in (plan.folder, *plan.folder.parents) if not path.exists())
    make_folder(plan.folder.parent)
    plan.folder.mkdir(mode=0o700, exist_ok=True)
    plan.folder.chmod(0o700)  # What is in it has passwords.
    if uses_compose:
        os.umask(READABLE)  # Containers read what is in it as other users.
    with _alone(plan.folder):
        _check_folder(plan.folder)  # Once more: another `up` may have been faster.
        had_data = (plan.folder / DATA).is_dir()
        passwords = kept_or_new(plan.folder)
        texts = _texts(plan, passwords, uses_compose=uses_compose, has_grafana=programs.grafana is not None)
        state = StackState(
            begun_ns=time.time_ns(),
            made=(*top_level(texts), LOGS),
            made_folders=made_folders,
            urls={name: f"http://{LOOPBACK}:{port}" for name, port in ports.items()},
            is_compose=uses_compose,
        )
        try:
            with uninterrupted():
                _write(plan.folder, state, texts, passwords)
            for server in servers:
                with uninterrupted():
                    begun = start(
                        server.name,
                        server.command,
                        url=server.url,
                        folder=plan.folder,
                        log=plan.folder / LOGS / f"{server.name}.log",
                        environment=server.environment,
                    )
                    state = msgspec.structs.replace(state, processes=(*state.processes, begun))
                    _keep(plan.folder, state)
                tell(f"{server.name} starts at {server.url}")
            if uses_compose:
                compose.up(plan.folder, tell=tell)
            for server, process in zip(servers, state.processes, strict=True):
                asked_by = authorization(getattr(passwords, server.name)) if server.has_password else None
                wait_until_ready(process, server.ready, authorization=asked_by)
        except BaseException:
            with uninterrupted():
                tell("it does not start as a whole, and is taken down again")
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
    if has_grafana and not uses_compose:
        texts[Path(_GRAFANA_INI)] = grafana_ini(plan.settings, plan.folder, passwords)
    if uses_compose:
        texts[Path(compose.ENVIRONMENT)] = compose.environment(plan.settings, plan.folder)
    return texts


def _own_servers(plan: StackPlan, programs: Programs) -> list[_Server]:
    assert programs.prometheus is not None
    assert programs.alertmanager is not None
    folder, settings = plan.folder, plan.settings
    servers = [
        _Server(
            name="alertmanager",
            port=settings.alertmanager.port,
            ready="/-/ready",
            command=(
                programs.alertmanager,
                f"--config.file={folder / ALERTMANAGER}",
                f"--storage.path={folder / DATA / 'alertmanager'}",
                f"--web.config.file={folder / web_file('alertmanager')}",
                f"--web.listen-address={LOOPBACK}:{settings.alertmanager.port}",
                "--cluster.listen-address=",  # It is alone, and else listens on all addresses.
            ),
            has_password=True,
        ),
        _Server(
            name="prometheus",
            port=settings.prometheus.port,
            ready="/-/ready",
            command=(
                programs.prometheus,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / DATA / 'prometheus'}",
                f"--storage.tsdb.retention.time={settings.prometheus.retention_days}d",
                f"--web.config.file={folder / web_file('prometheus')}",
                f"--web.listen-address={LOOPBACK}:{settings.prometheus.port}",
                f"--enable-feature={FEATURES}",
            ),
            has_password=True,
        ),
    ]
    if programs.grafana is not None:
        command = (*programs.grafana, f"--config={folder / _GRAFANA_INI}", *_homepath(Path(programs.grafana[0])))
        servers.append(_Server(name="grafana", port=settings.grafana.port, ready="/api/health", command=tuple(command)))
    return servers


def _homepath(program: Path) -> list[str]:
    """Return where Grafana's own files are: beside its program in an archive, elsewhere in a package."""
    places = (program.resolve().parents[1], Path("/usr/share/grafana"))
    return [f"--homepath={place}" for place in places if (place / "public").is_dir()][:1]


def _agents(plan: StackPlan) -> list[_Server]:
    words = (sys.executable, "-P", "-m", "bench", "serve", "--host", LOOPBACK, "--port")
    return [
        _Server(
            name=name,
            port=port,
            ready="/healthz",
            command=(*words, str(port), *(("--demo",) if name == "demo" else ())),
            environment={} if name == "demo" else plan.agent_environment,
        )
        for name, port in plan.agents.items()
    ]


def _check_folder(folder: Path) -> None:
    if folder.exists() and folder.stat().st_uid != os.geteuid():
        raise Misuse(f"{folder} belongs to another user; name a folder of yours, or a new one, with --folder")
    state = read_state(folder)
    if state is not None:
        gone = [one.name for one in ended(state)]
        if gone and running(folder, state):
            raise Misuse(
                f"a stack is up in {folder}, of which {' and '.join(gone)} ended; `observatory stack down --keep-data`"
                " ends the rest, and the next `up` goes on with its data"
            )
        if state.is_compose or running(folder, state):
            raise Misuse(
                f"a stack is up already, with Prometheus at {state.prometheus_url} ({folder}); `observatory stack down`"
                " ends it, and --folder with a --config of other ports starts one beside it"
            )
        raise Misuse(
            f"{folder} holds a stack whose servers have all ended; `observatory stack down --keep-data` clears it, and"
            " the next `up` goes on with its data"
        )
    for place, known in ((folder, (DATA,)), (folder / DATA, _IN_DATA)):
        others = sorted(path.name for path in place.iterdir() if path.name not in known) if place.is_dir() else []
        if others:
            raise Misuse(f"{place} holds {others[0]}, which is no stack's; name an empty folder, or a new one")


def _check_port(name: str, port: int) -> None:
    try:
        listen(LOOPBACK, port).close()
    except CannotListen as error:
        raise InfrastructureFailed(
            f"{name}: {error}; end that, or give another: {name}.port in a file for --config"
        ) from None


def _write(folder: Path, state: StackState, texts: Mapping[Path, str], passwords: Passwords) -> None:
    _keep(folder, state)
    for name in (LOGS, TARGETS, f"{DATA}/prometheus", f"{DATA}/alertmanager"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if not state.is_compose:  # Else the data is in Docker's volumes.
        replace_file(folder / DATA / DATA_MARK, b"")
    mode = 0o644 if state.is_compose else 0o600
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        replace_file(folder / path, text.encode(), mode=mode)
    write(folder, passwords, mode=mode)


def _keep(folder: Path, state: StackState) -> None:
    document = msgspec.json.format(msgspec.json.encode(state))
    replace_file(folder / STATE, document, mode=0o600)


def read_state(folder: Path) -> StackState | None:
    """Return what was started in this folder; None where nothing is.

    Raises:
        Misuse: the file that tells so is of a newer program, or damaged.
    """
    path = folder / STATE
    try:
        document = read_small(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if (version := schema_version_of(document)) > SCHEMA_VERSION:
            raise Misuse(f"{path} is of a newer program (schema_version {version}); use that one")
        return msgspec.json.decode(document, type=StackState)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Misuse(
            f"{path} is damaged; end the servers that still run by hand (their logs are in {folder / LOGS}), then"
            f" delete {folder}"
        ) from None


def prometheus_password(folder: Path, state: StackState) -> str:
    """Return the password of the folder's Prometheus, after a look at who would be shown it.

    Raises:
        Misuse: it is not there, or others can change it.
        InfrastructureFailed: another user's program has the port.
    """
    port = urlsplit(state.prometheus_url).port or 0
    # A container's Prometheus is another user's process.
    if not state.is_compose and uids_at(LOOPBACK, port) - {os.geteuid()}:
        raise InfrastructureFailed(f"port {port} of the stack's prometheus is taken by {holder_of(LOOPBACK, port)}")
    return read(folder, "prometheus")


def data_bytes(folder: Path) -> int:
    """Return the size of the data in the folder."""
    return sum(path.lstat().st_size for path in (folder / DATA).rglob("*") if path.is_file())


def down(folder: Path, *, keeps_data: bool) -> None:
    """End what was started in the folder, then delete what was made there.

    Raises:
        Misuse: nothing was started there.
        InfrastructureFailed: a server does not end, or something cannot be deleted; the rest is done, and a second
            call goes on.
    """
    state = read_state(folder)
    if state is None:
        raise Misuse(nothing_is_up(folder))
    with _alone(folder), uninterrupted():
        _take_down(folder, state, keeps_data=keeps_data)


def has_kept_data(folder: Path) -> bool:
    """Return whether the folder has data of a stack that is down."""
    return read_state(folder) is None and (folder / DATA / DATA_MARK).is_file()


def delete_kept_data(folder: Path) -> None:
    """Delete what `down` kept, and the folder where nothing else is in it.

    Raises:
        Misuse: another `up` or `down` is at work there, or was.
    """
    with _alone(folder), uninterrupted():
        if not has_kept_data(folder):
            raise Misuse(nothing_is_up(folder))
        _delete_data(folder)
        with suppress(OSError):  # It holds somebody else's.
            folder.rmdir()


def end_strays(folder: Path) -> None:
    """End servers of a folder whose state file is gone.

    Raises:
        InfrastructureFailed: one does not end, even killed.
    """
    with uninterrupted():
        if left := end(strays(folder, ())):
            raise InfrastructureFailed(f"process {left[0].pid} does not end, even killed; its files in {folder} stay")


def nothing_is_up(folder: Path) -> str:
    """Return what to say of a folder without a stack."""
    return f"no stack is up in {folder}; `observatory stack up` starts one, and --folder names another"


def _take_down(folder: Path, state: StackState, *, keeps_data: bool) -> None:
    if state.is_compose:
        compose.down(folder, keeps_data=keeps_data)
    if left := end([*state.processes, *strays(folder, state.processes)]):
        raise InfrastructureFailed(
            f"{', '.join(f'{one.name} (process {one.pid})' for one in left)} does not end, even killed; its files in"
            f" {folder} stay"
        )
    for name in state.made:
        _delete(folder / name)
    if not keeps_data:
        _delete_data(folder)
    for path in (folder / STATE, *folder.glob(DRAFTS)):  # Drafts are left where an `up` was killed while it wrote.
        path.unlink(missing_ok=True)
    for made in dict.fromkeys((str(folder), *state.made_folders)):
        with suppress(OSError):  # It holds data that is kept, or somebody else's.
            Path(made).rmdir()


def _delete_data(folder: Path) -> None:
    for name in _IN_DATA:  # The mark is last, so that a second call goes on.
        _delete(folder / DATA / name)
    with suppress(OSError):  # It is not there, or holds somebody else's.
        (folder / DATA).rmdir()


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder for one `up` or `down`.

    Raises:
        Misuse: another has it.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not try_lock(fd):
            raise Misuse(f"another `observatory stack` is at work in {folder}; wait until it is done")
        yield
    finally:
        os.close(fd)


def running(folder: Path, state: StackState) -> list[ServerProcess]:
    """Return the servers of the folder's stack that run now."""
    return [*filter(is_running, state.processes), *strays(folder, state.processes)]


def ended(state: StackState) -> Sequence[ServerProcess]:
    """Return the servers that ended without `down`."""
    return [process for process in state.processes if not is_running(process)]
