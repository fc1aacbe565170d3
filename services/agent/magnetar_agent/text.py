"""Text of others', made fit for a report."""


def line(text: str) -> str:
    """Return text as the one line of printable characters, at most 1,000, that a report carries."""
    return "".join(c if c.isprintable() else " " for c in text)[:1000]
