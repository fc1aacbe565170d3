"""Waiting for a condition with a deadline."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Return once the condition holds; fail naming `what` if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)
