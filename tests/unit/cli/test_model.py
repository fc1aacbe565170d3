"""What tables of a model's changes show."""

import pytest

from magnetar_cli.commands.model import _HISTORY  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [("", "a1" * 32, "x: - → a1a1a1a1a1a1"), (None, 3, "x: - → 3"), (1, 0, "x: 1 → 0"), ("a", "", "x: a → -")],
)
def test_sides_of_a_change_are_short_and_never_blank(before: object, after: object, shown: str) -> None:
    row = {"differences": [{"field": "x", "before": before, "after": after}]}
    assert _HISTORY["changes"](row) == shown
