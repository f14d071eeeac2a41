"""Runs when Python starts: first the sitecustomize that Python would have found without us, then our hooks."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_former() -> None:
    """Run the sitecustomize that Python would have found without us; its errors are Python's to report."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path) != _HERE])
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


def _install() -> None:
    try:
        recorder, hooks = __import__("observatory_watch"), __import__("observatory_watch_hooks")
        hooks.install(recorder)
    except Exception:  # noqa: BLE001  # If the hooks cannot be loaded, the script runs unwatched.
        sys.modules.pop("observatory_watch_hooks", None)


if os.path.basename(_HERE) == "hook":  # Not when imported from elsewhere.
    try:
        _run_former()
    finally:
        _install()
