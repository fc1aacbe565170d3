"""What ``magnetar log --subject`` means."""

import pytest

from magnetar_cli.commands.log import subject_named
from magnetar_cli.exit_codes import Misused

KNOWN = {"default/iris", "team/iris", "default/both", "local/both/0", "local/a/0", "local/p/0", "local/p/1", "tenant:t"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("iris", "default/iris"),
        ("team/iris", "team/iris"),
        ("a", "local/a/0"),
        ("a/0", "local/a/0"),
        ("local/a/0", "local/a/0"),
        ("p/1", "local/p/1"),
        ("both", "default/both"),
        ("both/0", "local/both/0"),
        ("tenant:t", "tenant:t"),
        ("a/1", ""),
        ("rose", ""),
        ("iris/iris", ""),
    ],
)
def test_a_subject_is_named_as_shortly_as_is_clear(name: str, meant: str) -> None:
    assert subject_named(name, KNOWN, "local") == meant


def test_a_name_that_two_servers_bear_is_asked_about() -> None:
    with pytest.raises(Misused, match="there are 2 servers p: local/p/0, local/p/1"):
        subject_named("p", KNOWN, "local")
