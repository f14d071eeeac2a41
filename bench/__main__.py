"""Runs `observatory` as `python -P -m bench`."""

from bench.cli.main import main

if __name__ == "__main__":
    main()
