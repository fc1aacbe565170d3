"""A seed is a run: the same one, whenever and wherever it is repeated."""

import os
import subprocess
import sys
import threading
import time

from magnetar_common import table_view
from tests.simulation.simulation import run_seed

SEEDS = (0, 5)


def test_a_seed_repeats_itself_whatever_the_hashes_of_strings_are() -> None:
    """The same seed gives the same trace in another process, where sets of strings are in another order."""
    here = [run_seed(seed).digest for seed in SEEDS]
    code = f"from tests.simulation.simulation import run_seed; print([run_seed(s).digest for s in {SEEDS}])"
    for hashes in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == str(here)


def test_other_seeds_are_other_runs() -> None:
    """The trace depends on the seed."""
    assert run_seed(0).digest != run_seed(1).digest


def test_afterwards_everything_is_as_it_was() -> None:
    """The production modules have the real clock and the real threads back, and none of ours is left."""
    before = threading.active_count()
    run_seed(0)
    assert (table_view.time, table_view.threading) == (time, threading)
    assert threading.active_count() == before
