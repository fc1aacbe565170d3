"""The simulation finds bugs: each of these mutations of the production code is caught, by the invariant that it breaks."""

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.simulation import run_seed

SEEDS = 200
"""A mutation that so many seeds do not find is one that the simulation does not see."""


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_caught(mutation: str) -> None:
    """Within so many seeds, and by name."""
    mutate, invariants = MUTATIONS[mutation]
    found = (run_seed(seed, mutate()).invariant for seed in range(SEEDS))
    caught = next((invariant for invariant in found if invariant), "")
    assert caught in invariants
