"""Rows of the result, and how they are printed."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measure. ``ratio`` is what counts; the figures behind it are of this machine at this moment."""

    what: str
    ours: str
    against: str
    ratio: float
    goal: str
    met: bool


def print_table(rows: list[Row]) -> None:
    """Print the rows in columns."""
    lines = [("measure", "ours", "against", "ratio", "goal", "")]
    lines += [(r.what, r.ours, r.against, f"{r.ratio:.2f}", r.goal, "" if r.met else "MISSED") for r in rows]
    widths = [max(len(line[n]) for line in lines) for n in range(6)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection in between."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def cpu_times(work: list[Callable[[], object]]) -> list[float]:
    """Return the CPU seconds of this thread that each piece took, sorted: what other processes do does not count."""
    times: list[float] = []
    with quiet():
        for piece in work:
            began = time.thread_time()
            piece()
            times.append(time.thread_time() - began)
    return sorted(times)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
