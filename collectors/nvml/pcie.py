"""What a PCIe link carries, and its wrapping counters made whole."""

from __future__ import annotations

_TRANSFERS_PER_S = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
_ENCODING = {1: 8 / 10, 2: 8 / 10, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}
_WRAP = 1 << 32


def link_bytes_per_second(generation: int, lanes: int) -> float | None:
    """What the link carries in one direction, line coding deducted; None for a generation that is not known here.

    Source: PCI Express Base Specification, rates and encodings by generation (6: flits).
    """
    if generation not in _TRANSFERS_PER_S:
        return None
    return _TRANSFERS_PER_S[generation] * _ENCODING[generation] / 8 * lanes


class WholeCounter:
    """A counter of 32 bits that wraps, made one that grows; it begins at 0.

    It counts bytes, so that a link of 63 GB/s wraps it 15 times a second, and one of 16 GB/s 4 times. How often it did
    between two readings is told by an expected growth that is right to within half a wrap. Without one it is known
    only where the link cannot have carried as much as wraps it; elsewhere the growth is unknown, and what is counted
    after it begins anew.
    A value above 32 bits shows that this driver's counter does not wrap.
    Source: nvml.h, NVML_FI_DEV_PCIE_COUNT_TX_BYTES ("PCIe transmit bytes. Value can be wrapped"); the driver's own
    counter is an NvU32 (ctrl2080bus.h, NV2080_CTRL_BUS_GET_PEX_UTIL_COUNTERS_PARAMS).
    """

    def __init__(self) -> None:
        self._raw: int | None = None
        self._is_wide = False
        self._whole = 0

    def advance(self, raw: int, *, expected: float | None, most: float | None) -> int | None:
        """Its growth since the first reading, or since the last that was unknown; None where this one is unknown.

        expected: the growth since the last reading. most: what it can be. Each None where that is not known.
        """
        self._is_wide = self._is_wide or raw >= _WRAP
        growth = 0 if self._raw is None else self._growth(self._raw, raw, expected, most)
        self._raw = raw
        self._whole = 0 if growth is None else self._whole + growth
        return None if growth is None else self._whole

    def _growth(self, before: int, raw: int, expected: float | None, most: float | None) -> int | None:
        if self._is_wide:
            return raw - before if raw >= before else raw  # Smaller: the driver was loaded anew.
        growth = (raw - before) % _WRAP
        if expected is not None:
            return growth + _WRAP * max(0, round((expected - growth) / _WRAP))
        return growth if most is not None and most < _WRAP else None
