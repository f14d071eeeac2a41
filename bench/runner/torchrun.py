"""An alias: `python -m bench.runner.torchrun` is `python -m bench.session.torchrun`, for scripts that name it."""

import runpy

if __name__ == "__main__":
    runpy.run_module("bench.session.torchrun", run_name="__main__", alter_sys=True)
