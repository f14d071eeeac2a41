"""`python -P -m bench` is `observatory`."""

from bench.cli.main import main

if __name__ == "__main__":
    main()
