"""Every field of a service's settings is a flag and an environment variable, made from the settings alone."""

import importlib
import inspect
import os
from typing import Any, Literal
from unittest import mock

import pytest
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from magnetar_cli import options
from magnetar_cli.commands.run import SERVICES, command_of
from magnetar_cli.exit_codes import Misused
from magnetar_common.settings import SnapshotSettings


class Sample(BaseSettings):
    """Settings.

    Attributes:
        name: who it is;
            said on two lines.
        port: where.
        quiet: says nothing.
        words: many.
        colour: of two.
    """

    model_config = SettingsConfigDict(env_prefix="SAMPLE_")

    name: str = ""
    port: int = Field(default=80, ge=0, le=65_535)
    quiet: bool = False
    words: tuple[str, ...] = ()
    colour: Literal["red", "green"] = "red"


def values(**given: Any) -> dict[str, Any]:
    return {**dict.fromkeys(Sample.model_fields), **given}


def test_every_field_of_every_service_is_a_flag_with_its_variable_and_its_sentence() -> None:
    for name, service in SERVICES.items():
        cls = getattr(importlib.import_module(service.settings), service.cls)
        made = {parameter.name: parameter for parameter in command_of(name, service).params}
        for field in cls.model_fields:
            assert f"--{field.replace('_', '-')}" in made[field].opts
            assert made[field].envvar == f"MAGNETAR_{name.upper()}_{field.upper()}"
            assert made[field].help, f"{service.cls} says nothing of {field}"


def test_what_is_not_given_comes_from_the_environment_and_then_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMPLE_PORT", "90")
    assert options.settings_of(Sample, values(name="x")) == Sample(name="x", port=90, quiet=False)


def test_what_is_given_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMPLE_PORT", "90")
    assert options.settings_of(Sample, values(port=70)).port == 70


@pytest.mark.parametrize("text", ["a,b", "a, b", '["a", "b"]'])
def test_a_list_is_words_with_commas_or_json(text: str) -> None:
    assert options.settings_of(Sample, values(words=text)).words == ("a", "b")


@pytest.mark.parametrize(
    ("given", "told"), [({"port": 70_000}, r"--port \(or SAMPLE_PORT\)"), ({"colour": "blue"}, "--colour")]
)
def test_a_wrong_value_names_its_flag_and_its_variable(given: dict[str, Any], told: str) -> None:
    with pytest.raises(Misused, match=told):
        options.settings_of(Sample, values(**given))


def test_a_sentence_may_go_over_several_lines() -> None:
    assert options.descriptions(Sample)["name"] == "who it is; said on two lines."


def test_a_prefix_keeps_two_classes_apart() -> None:
    names = [parameter.name for parameter in options.parameters(Sample, prefix="other_")]
    assert names == [f"other_{field}" for field in Sample.model_fields]


def test_a_command_gets_the_added_options_after_its_own() -> None:
    seen: dict[str, Any] = {}

    def fn(own: str, **rest: Any) -> None:
        seen.update(own=own, **rest)

    made = options.command(fn, options.parameters(Sample))
    assert list(inspect.signature(made).parameters) == ["own", *Sample.model_fields]
    made(own="mine", port=1)
    assert seen == {"own": "mine", "port": 1}


@pytest.mark.parametrize("name", ["scheduler", "projector"])
def test_flags_for_snapshots_reach_the_service(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag comes before the variable, which comes before the default."""
    seen: list[SnapshotSettings] = []

    def run(_: BaseSettings) -> int:
        seen.append(SnapshotSettings())
        return 0

    monkeypatch.delenv("MAGNETAR_CONTEXT", raising=False)  # another test may have chosen one
    monkeypatch.setattr(f"magnetar_{name}.main.run", run)
    broker = {"MAGNETAR_CONTEXT": "", "MAGNETAR_PULSAR_URL": "pulsar://127.0.0.1:6650"}
    given = {"MAGNETAR_SNAPSHOTS_KEEP": "5", "MAGNETAR_SNAPSHOTS_URL": "file:///b"}
    with mock.patch.dict(os.environ, {**broker, **given}):
        command_of(name, SERVICES[name])(["--snapshots-url", "file:///a"], standalone_mode=False)
    assert seen == [SnapshotSettings(url="file:///a", keep=5)]
