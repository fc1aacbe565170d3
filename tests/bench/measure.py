"""What the measures share: what they may use, rows of the result, and how they are printed."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from magnetar_common.brokers import RunningBroker, select


class Setting:
    """Where a run takes place.

    Args:
        quick: sizes so small that figures mean nothing: it is seen that all runs.
        pulsar: a real Pulsar; None = one is started when it is first asked for, and ended with the run.
    """

    def __init__(self, *, quick: bool = False, pulsar: RunningBroker | None = None) -> None:
        self.quick = quick
        self._pulsar = pulsar
        self._at_end = ExitStack()
        self.folder = Path(self._at_end.enter_context(TemporaryDirectory(prefix="magnetar-bench-")))

    @cached_property
    def pulsar(self) -> RunningBroker:
        """The real Pulsar of this run."""
        return self._pulsar or self._at_end.enter_context(select.own_pulsar(self.folder / "pulsar"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._at_end.close()


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
