"""The scanner in C: its source is in `scanner/`, and the wheel contains it if there was a compiler."""

ROW_BYTES: int
SAID_BYTES: int
ALLOCATION_BYTES: int

def scan(
    chunk: bytes | bytearray | memoryview, kept: tuple[str, ...], not_kept: tuple[str, ...], phases: str, /
) -> tuple[bytes, tuple[str, ...], tuple[str, ...], bytes, bytes, int, tuple[str, ...], tuple[str, ...]] | None:
    """Decode a chunk; return None if the scanner is not sure of it. phases: the letters of known phases.

    Returns rows, names, shapes, places of collectives' args, allocations, the number of memory changes without an
    address, unknown categories, and unread phases. `raw_events` explains them, `decoders` has their layout.
    """
