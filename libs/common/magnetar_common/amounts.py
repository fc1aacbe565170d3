"""Amounts and counts, for people."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def amount(size: int) -> str:
    """Return bytes for people: ``100 MiB``."""
    value = float(size)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} {_UNITS[-1]}"


def counted(count: int, one: str, many: str = "") -> str:
    """Return how many there are: ``1 server``, ``2 servers``, or another plural."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
