"""What lets a stranger in stands in one place or nowhere; the syntax tree is asked, so that no text is a call."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("bench", "collectors", "dashboards", "workloads")

_OBJECT_COLLECTIVES = {
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
}
_SERVERS = {"create_server", "start_server", "HTTPServer", "ThreadingHTTPServer", "TCPServer", "ThreadingTCPServer"}
_UNPICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
_SAFE_LOADERS = {"SafeLoader", "CSafeLoader"}


@cache
def _trees() -> list[tuple[Path, ast.Module]]:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return [(path, ast.parse(path.read_text())) for path in paths]


def _name(node: ast.expr) -> str:
    """Return the last name of an expression: `load` of `torch.load`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _of(node: ast.expr) -> str:
    """Return what the last name is of: `torch` of `torch.load`."""
    return _name(node.value) if isinstance(node, ast.Attribute) else ""


def _is_true(call: ast.Call, keyword: str) -> bool:
    given = {one.arg: one.value for one in call.keywords}.get(keyword)
    return isinstance(given, ast.Constant) and given.value is True


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").split(".")[0])
    return found


def _listens(tree: ast.Module) -> bool:
    # `event.listen` is SQLAlchemy's, `sockets.listen` ours; a socket is bound to one argument, its address.
    return any(
        _name(call.func) in _SERVERS
        or (_name(call.func) == "listen" and _of(call.func) not in {"", "event", "sockets"})
        or (_name(call.func) == "bind" and len(call.args) == 1)
        for call in _calls(tree)
    )


def _passes_objects(tree: ast.Module) -> bool:
    names = {_name(node) for node in ast.walk(tree) if isinstance(node, ast.expr)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    return bool(names & _OBJECT_COLLECTIVES)


def _calls_remotely(tree: ast.Module) -> bool:
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return any(module.startswith("torch.distributed.rpc") for module in modules) or any(
        _name(call.func) == "init_rpc" for call in _calls(tree)
    )


def _unpickles(tree: ast.Module) -> bool:
    return bool(_imported(tree) & _UNPICKLERS) or any(
        (_name(call.func) == "load" and _of(call.func) == "torch" and not _is_true(call, "weights_only"))
        or _is_true(call, "allow_pickle")
        for call in _calls(tree)
    )


def _loads_yaml_unsafely(tree: ast.Module) -> bool:
    safe = _SAFE_LOADERS | {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and {_name(base) for base in node.bases} & _SAFE_LOADERS
    }
    for call in _calls(tree):
        if _of(call.func) == "yaml" and _name(call.func) in {"load", "load_all", "unsafe_load", "full_load"}:
            loaders = [*call.args[1:], *(one.value for one in call.keywords if one.arg == "Loader")]
            if not loaders or _name(loaders[0]) not in safe:
                return True
    return False


def _runs_text(tree: ast.Module) -> bool:
    return any(
        _is_true(call, "shell")
        or (_of(call.func) == "os" and _name(call.func) in {"system", "popen"})
        or (isinstance(call.func, ast.Name) and call.func.id in {"eval", "exec"})
        for call in _calls(tree)
    )


def _reads_toml(tree: ast.Module) -> bool:
    return bool(_imported(tree) & {"tomllib", "tomli", "toml"})


FINDERS: dict[str, tuple[Callable[[ast.Module], bool], set[str]]] = {
    "a listening socket": (_listens, {"collectors/sockets.py"}),
    "an object collective": (_passes_objects, set()),
    "torch's RPC": (_calls_remotely, set()),
    "unpickling": (_unpickles, {"collectors/flight_records/dumps.py", "workloads/core/checkpointing.py"}),
    "an unsafe loader of YAML": (_loads_yaml_unsafely, set()),
    "a shell or text that is run": (_runs_text, set()),
    "a reader of TOML": (_reads_toml, {"collectors/settings_file.py"}),
}
"""What is looked for, by its name: how, and the files that may have it."""


@pytest.mark.parametrize("what", FINDERS)
def test_it_stands_in_its_one_place_or_nowhere(what: str) -> None:
    finder, places = FINDERS[what]
    found = {str(path.relative_to(ROOT)) for path, tree in _trees() if finder(tree)}
    assert found == places


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("a listening socket", "import socket\nwith socket.socket() as door:\n    door.listen()"),
        ("a listening socket", "socket.create_server(('', 0))"),
        ("a listening socket", "door.bind(('', 0))"),
        ("a listening socket", "http.server.ThreadingHTTPServer(('', 0), Handler)"),
        ("an object collective", "dist.all_gather_object(all, one)"),
        ("an object collective", "from torch.distributed import broadcast_object_list as send"),
        ("torch's RPC", "from torch.distributed import rpc"),
        ("torch's RPC", "import torch.distributed.rpc as rpc"),
        ("torch's RPC", "from torch.distributed.rpc import rpc_sync"),
        ("torch's RPC", "torch.distributed.rpc.init_rpc('a')"),
        ("unpickling", "import pickle"),
        ("unpickling", "from multiprocessing import x\nfrom pickle import loads"),
        ("unpickling", "torch.load(path)"),
        ("unpickling", "torch.load(path, weights_only=False)"),
        ("unpickling", "np.load(path, allow_pickle=True)"),
        ("an unsafe loader of YAML", "yaml.load(text)"),
        ("an unsafe loader of YAML", "yaml.load(text, Loader=yaml.Loader)"),
        ("an unsafe loader of YAML", "class Mine(yaml.Loader): ...\nyaml.load(text, Mine)"),
        ("an unsafe loader of YAML", "yaml.unsafe_load(text)"),
        ("a shell or text that is run", "subprocess.run(text, shell=True)"),
        ("a shell or text that is run", "os.system(text)"),
        ("a shell or text that is run", "eval(text)"),
        ("a reader of TOML", "import tomllib"),
    ],
)
def test_it_is_found(what: str, code: str) -> None:
    assert FINDERS[what][0](ast.parse(code))


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (
            "a listening socket",
            "event.listen(engine, 'connect', prepare)\nlisten('127.0.0.1', 0)\nwire.bind('agent', n)",
        ),
        ("a listening socket", "'socket.create_server'  # door.listen()"),
        ("torch's RPC", "from torch.distributed import PrefixStore\nimport torch.distributed as dist"),
        ("unpickling", "torch.load(path, weights_only=True)\njson.load(file)"),
        ("an unsafe loader of YAML", "class Mine(yaml.SafeLoader): ...\nyaml.load(text, Mine)\nyaml.safe_load(text)"),
        ("a shell or text that is run", "subprocess.run(words, shell=False)\nmodel.eval()"),
        ("a reader of TOML", "from collectors.settings_file import read_toml"),
    ],
)
def test_nothing_else_is_taken_for_it(what: str, code: str) -> None:
    assert not FINDERS[what][0](ast.parse(code))
