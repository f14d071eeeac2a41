"""Calls the watch from within torch: around backward, a DataLoader's batches, a GradScaler and optimizers.

Three functions are replaced once torch is imported, and optimizers get global hooks. Modules get no hooks: models are
pickled and compiled as without us, and compiled code calls none of ours. Imports only the standard library.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SWITCH = "OBSERVATORY_WATCH"
"""The environment variable that switches the hooks off: OBSERVATORY_WATCH=off."""
OLDEST_TORCH = (2, 11)
WINDOW = "observatory_watch_window"

_recorder: Any = None
"""The module `observatory_watch`, which holds the current watch."""


def install(recorder: Any) -> None:
    """Watch this process once it imports torch, as the settings next to this file say; without them do nothing.

    recorder: the module `observatory_watch`.
    """
    global _recorder
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "settings.json")
    if _recorder is not None or os.environ.get(SWITCH, "").lower() == "off" or not os.path.exists(path):
        return
    import json

    with open(path, encoding="utf-8") as file:
        watch = _watch_of(recorder, json.load(file))
    _recorder, recorder.current = recorder, watch
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
    if "torch" in sys.modules:
        watch.guarded(_hook_torch)
    else:
        sys.meta_path.insert(0, _TorchFinder())


def _watch_of(recorder: Any, settings: dict[str, Any]) -> Any:
    """A watch that follows requests for windows from its first step on."""
    watch = recorder.Watch(settings)

    def first_step() -> None:
        from importlib import import_module

        window = import_module(f"{__package__}.{WINDOW}" if __package__ else WINDOW)
        watch.windows = window.Windows(watch, recorder)
        watch.on_step = watch.windows.at_step_end

    watch.on_backward, watch.on_step = _hook_deepspeed, first_step
    return watch


def _active() -> Any:
    """The watch of this process, or None once it is over."""
    watch = _recorder.current
    if watch is None or watch.is_over:
        return None
    if watch._witness is not None:
        watch._witness.go_on()
    return watch


def _before_fork() -> None:
    """End our thread before the process forks."""
    if (watch := _recorder.current) is not None and watch._witness is not None:
        watch._witness.before_fork()


def _after_fork() -> None:
    if (watch := _recorder.current) is not None and watch._witness is not None:
        watch._witness.after_fork()


def _in_child() -> None:
    """Stop watching in children of a rank, such as data workers; other forked processes may become ranks."""
    former = _recorder.current
    if former is not None:
        if former.windows is not None:
            former.windows.in_child()
        is_worker = former.has_trained or former.is_begun or former.is_over
        _recorder.current = None if is_worker else _watch_of(_recorder, former.settings)
        if not is_worker:
            _recorder.current.too_old = former.too_old


class _TorchFinder:
    """Import finder that finds nothing itself: it installs the hooks once torch is imported, and removes itself."""

    _is_looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or self._is_looking:
            return None
        import importlib.util

        self._is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_looking = False
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return None
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            loader.exec_module = execute
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                if (watch := _active()) is not None:
                    watch.guarded(_hook_torch)

        loader.exec_module = exec_module
        return spec


def _hook_torch() -> None:
    import weakref

    torch: Any = sys.modules["torch"]
    followed: set[int] = set()

    def gone(key: int) -> None:
        """Forget a freed optimizer, whose id another may get: the next optimizer that steps leads again."""
        followed.discard(key)
        if (watch := _active()) is not None and watch._lead == key:
            watch._lead = None

    def follow(stepped: Any) -> None:
        if id(stepped) not in followed:
            followed.add(id(stepped))
            weakref.finalize(stepped, gone, id(stepped)).atexit = False

    def before(stepped: Any, _arguments: object, _named: object) -> None:
        if not torch.compiler.is_compiling() and (watch := _active()) is not None:
            watch.guarded(follow, stepped)
            watch.guarded(watch.enter_optimizer, id(stepped))

    def after(stepped: Any, _arguments: object, _named: object) -> None:
        if not torch.compiler.is_compiling() and (watch := _active()) is not None:
            watch.guarded(watch.leave_optimizer, id(stepped))

    _keep_from_compiler(before, after, _active, _recorder.Watch.guarded, _recorder.Watch.times_phase_here)
    optimizer: Any = sys.modules["torch.optim.optimizer"]  # The package has no attribute of this name.
    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)
    version = str(torch.__version__).split("+")[0].split(".")
    if tuple(map(int, version[:2])) < OLDEST_TORCH:
        _recorder.current.too_old = (
            f"torch {torch.__version__} is older than {'.'.join(map(str, OLDEST_TORCH))}: not watched"
        )
        return

    def scaled(arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the optimizer that a GradScaler is to step: its first argument, or named."""
        return arguments[1] if len(arguments) > 1 else named.get("optimizer")

    _wrap(
        torch.autograd, "backward", lambda watch, *_: watch.enter_backward(), lambda watch, *_: watch.leave_backward()
    )
    loader = torch.utils.data.dataloader._BaseDataLoaderIter
    _wrap(loader, "__next__", lambda watch, *_: watch.enter_data(), lambda watch, *_: watch.leave_data())
    _wrap(
        torch.amp.grad_scaler.GradScaler,
        "step",
        lambda watch, *words: None if (one := scaled(*words)) is None else watch.enter_optimizer(-id(one)),
        lambda watch, *words: None if (one := scaled(*words)) is None else watch.leave_optimizer(-id(one)),
        is_phase=False,
    )


def _hook_deepspeed() -> None:
    """Wrap the method that DeepSpeed's engine, once it is loaded, calls only at the boundary of accumulation."""
    engine = getattr(sys.modules.get("deepspeed.runtime.engine"), "DeepSpeedEngine", None)
    if engine is not None:
        _recorder.current.on_backward = None
        _wrap(
            engine,
            "_take_model_step",
            lambda watch, *_: watch.enter_engine_step(),
            lambda watch, *_: watch.leave_engine_step(),
            is_phase=False,
        )


def _wrap(
    owner: Any,
    name: str,
    enter: Callable[[Any, tuple[Any, ...], dict[str, Any]], None],
    leave: Callable[[Any, tuple[Any, ...], dict[str, Any]], None],
    *,
    is_phase: bool = True,
) -> None:
    """Replace the owner's function by one that calls ours around it.

    enter, leave: called with the watch, and the function's arguments by position and by name. is_phase: only in the
    training thread.
    """
    import functools

    torch: Any = sys.modules["torch"]
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        watch = None if torch.compiler.is_compiling() else _active()
        if watch is None or (is_phase and not watch.times_phase_here()):
            return original(*arguments, **named)
        watch.guarded(enter, watch, arguments, named)
        try:
            return original(*arguments, **named)
        finally:
            watch.guarded(leave, watch, arguments, named)

    _keep_from_compiler(call)
    setattr(owner, name, call)


def _keep_from_compiler(*functions: Any) -> None:
    """Keep torch.compile from compiling these functions, and what they call of ours, when they start a frame.

    If a graph breaks at backward, the compiled function calls our wrapper, which the compiler would otherwise compile
    as the next piece of the graph. It still traces into a function that it meets inside a graph: see `is_compiling`.
    """
    native: Any = getattr(getattr(sys.modules["torch"]._C, "_dynamo", None), "eval_frame", None)
    action = getattr(native, "_FrameAction", None)
    if action is None or not hasattr(native, "set_code_exec_strategy"):  # Other names in another torch.
        return
    for function in functions:
        is_wrapper = hasattr(function, "__wrapped__")  # Torch's own function inside is compiled as without us.
        within = action.DEFAULT if is_wrapper else action.SKIP
        native.set_code_exec_strategy(function.__code__, native._FrameExecStrategy(action.SKIP, within))
