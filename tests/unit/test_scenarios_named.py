"""Each row of SCENARIOS.md that the log's part and the scheduler answer for has a test that carries its number."""

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
FAULTS = [*map(str, (10, 11, 12, 13, 16, 19, 20)), *(f"L{n}" for n in (*range(1, 8), *range(9, 20), 21, 22))]
FLEET = [*map(str, (8, 22, 26, 33, 34, 37, 38, 39, 42, 43, 59, 61))]

_NAME = re.compile(r"^ *def test_((?:(?:s?\d+|l\d+)_)+)", re.MULTILINE)


def test_each_scenario_is_named_by_a_test_that_proves_it() -> None:
    """In the test's name: `test_l12_…`, `test_11_12_…`, `test_s09_…`."""
    named: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for numbers in _NAME.findall(path.read_text()):
            named |= {_row(number) for number in numbers.split("_") if number}
    assert [row for row in (*FAULTS, *FLEET) if row not in named] == []


def _row(number: str) -> str:
    letter, digits = ("L", number[1:]) if number[0] == "l" else ("", number.lstrip("s"))
    return f"{letter}{int(digits)}"
