"""Each row of SCENARIOS.md that the log's part of Magnetar answers for has a test that carries its number."""

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROWS = "10 11 12 13 16 19 20 L1 L2 L3 L4 L5 L6 L7 L9 L10 L11 L12 L13 L14 L15 L16 L17 L18 L19 L21 L22".split()
"""Of issue 4."""

_NAME = re.compile(r"^ *def test_((?:(?:s?\d+|l\d+)_)+)", re.MULTILINE)


def test_each_scenario_is_named_by_a_test_that_proves_it() -> None:
    """In the test's name: `test_l12_…`, `test_11_12_…`, `test_s09_…`."""
    named: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for numbers in _NAME.findall(path.read_text()):
            named |= {_row(number) for number in numbers.split("_") if number}
    assert [row for row in ROWS if row not in named] == []


def _row(number: str) -> str:
    letter, digits = ("L", number[1:]) if number[0] == "l" else ("", number.lstrip("s"))
    return f"{letter}{int(digits)}"
