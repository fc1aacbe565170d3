"""Secrets are found on the host and never show themselves."""

from pathlib import Path

import pytest

from magnetar_agent.adapters.base import Code
from magnetar_agent.secrets import SecretError, resolve


def test_a_secret_is_a_file_in_the_folder(tmp_path: Path) -> None:
    """`NAME.json` holds fsspec storage options."""
    (tmp_path / "s3-team.json").write_text('{"key": "me", "secret": "hunter22"}')
    assert dict(resolve("s3-team", tmp_path)) == {"key": "me", "secret": "hunter22"}


def test_a_secret_may_be_an_environment_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder is asked first, then `MAGNETAR_SECRET_<NAME>`."""
    monkeypatch.setenv("MAGNETAR_SECRET_S3_TEAM", '{"key": "from-env"}')
    assert dict(resolve("s3-team", tmp_path)) == {"key": "from-env"}


def test_a_secret_does_not_show_itself(tmp_path: Path) -> None:
    """Neither repr nor str nor formatting holds a value."""
    (tmp_path / "s.json").write_text('{"secret": "hunter22"}')
    secret = resolve("s", tmp_path)
    assert "hunter22" not in f"{secret!r} {secret} {[secret]}"


@pytest.mark.parametrize("name", ["../outside", "", "/outside", "a/../../outside", ".hidden"])
def test_a_name_never_leaves_the_folder(name: str, tmp_path: Path) -> None:
    """A secret's name comes from an event and may be anything; a file that it would lead to is not read."""
    (tmp_path / "secrets" / "a").mkdir(parents=True)
    for path in (tmp_path / "outside.json", tmp_path / "secrets" / ".hidden.json"):
        path.write_text('{"key": "x"}')
    with pytest.raises(SecretError):
        resolve(name, tmp_path / "secrets")


def test_a_missing_secret_says_where_to_put_it(tmp_path: Path) -> None:
    """Final: nobody but an operator changes it."""
    with pytest.raises(SecretError) as caught:
        resolve("s3-team", tmp_path)
    assert (caught.value.code, caught.value.retriable) == (Code.SECRET_MISSING, False)
    assert "MAGNETAR_SECRET_S3_TEAM" in caught.value.message


@pytest.mark.parametrize("text", ['{"secret": "hunter22"', '["hunter22"]'])
def test_a_broken_secret_is_not_quoted(text: str, tmp_path: Path) -> None:
    """Not even by the exception it came from."""
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(SecretError) as caught:
        resolve("s", tmp_path)
    assert "hunter22" not in str(caught.value)
    assert caught.value.__context__ is None
