"""Whatever the adversary does, the invariants hold, and once it stops all is well: part 1 of 2."""

import pytest

from tests.simulation.seeds import EACH, check


@pytest.mark.parametrize("first", range(0, 150, EACH))
def test_seeds(first: int) -> None:
    """Chaos breaks nothing, and ends well."""
    check(range(first, first + EACH))
