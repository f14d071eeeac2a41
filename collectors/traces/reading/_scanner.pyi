"""The scanner in C, whose source is in `scanner/`; built with the wheel where there is a compiler."""

ROW_BYTES: int
SAID_BYTES: int
ALLOCATION_BYTES: int

def scan(
    chunk: bytes | bytearray | memoryview, kept: tuple[str, ...], not_kept: tuple[str, ...], phases: str, /
) -> tuple[bytes, tuple[str, ...], tuple[str, ...], bytes, bytes, int, tuple[str, ...], tuple[str, ...]] | None:
    """What a chunk holds; None where it is not sure of it. phases: the letters of those that are known.

    Rows, names, shapes, what is said, allocations, changes of memory without an address, unknown categories, and
    phases that are not read. See `collectors.traces.reading.raw_events` for what they are, and `scanned_events` beside
    it for their layout.
    """
