"""Seeds as tests; spread over several files, because a file is one worker's."""

from collections.abc import Iterable

from tests.simulation.__main__ import report
from tests.simulation.simulation import run_seed

EACH = 10
"""Seeds in one test."""


def check(seeds: Iterable[int]) -> None:
    """Run seeds, and fail with all that a failing one tells."""
    loads = 0
    for seed in seeds:
        result = run_seed(seed)
        assert result.failure is None, "\n" + report(result)
        loads += result.loads
    assert loads > 5 * EACH  # a run in which nothing is loaded proves nothing
