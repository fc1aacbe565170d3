"""How a refusal is told."""

import pytest

from magnetar_cli.asking import refused
from magnetar_cli.exit_codes import ExitCode
from magnetar_common.errors import RequestRefused


@pytest.mark.parametrize(
    ("error", "told", "hint"),
    [
        (
            RequestRefused("FROZEN", "event.name", "default/iris is frozen by unverified uid-0: audit"),
            "FROZEN: event.name: default/iris is frozen by unverified uid-0: audit",
            "magnetar model unfreeze iris",
        ),
        (
            RequestRefused("NOT_FOUND", "event.to", "there was no version 9 of default/iris: its last is 3"),
            "NOT_FOUND: event.to: there was no version 9 of default/iris: its last is 3",
            "magnetar model history iris --versions",
        ),
        (
            RequestRefused("NOT_FOUND", "event.name", "there is no model default/iris"),
            "NOT_FOUND: event.name: there is no model default/iris",
            "magnetar model list",
        ),
        (
            RequestRefused("OUT_OF_RANGE", "event.replicas", "9 is outside the model's limits, 0 to 3"),
            "OUT_OF_RANGE: event.replicas: default/iris: 9 is outside the model's limits, 0 to 3",
            "",
        ),
    ],
)
def test_a_refusal_names_what_it_is_about_once(error: RequestRefused, told: str, hint: str) -> None:
    refusal = refused("default/iris", error)
    assert (str(refusal), refusal.hint, refusal.code) == (told, hint, ExitCode.REJECTED)
