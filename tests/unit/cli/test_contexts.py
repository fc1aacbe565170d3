"""Which broker is meant: what is explicit comes first, then the environment, then the context in use."""

import stat
from pathlib import Path

import pytest

from magnetar_cli import contexts
from magnetar_cli.contexts import BrokerContext
from magnetar_cli.exit_codes import Misused, NotFound
from magnetar_common.settings import BusSettings

ONE, TWO = BrokerContext(url="pulsar://one:6650", token="hush"), BrokerContext(url="pulsar://two:6650")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("MAGNETAR_CONTEXT", *(f"MAGNETAR_PULSAR_{name.upper()}" for name in BusSettings.model_fields)):
        monkeypatch.delenv(variable, raising=False)
    path = tmp_path / "config" / "contexts.yaml"
    monkeypatch.setenv("MAGNETAR_CONFIG", str(path))
    return path


def test_without_a_file_the_defaults_hold() -> None:
    assert contexts.bus_settings() == BusSettings()


def test_the_context_in_use_is_meant() -> None:
    contexts.put("one", ONE, use=True)
    contexts.put("two", TWO, use=False)
    assert contexts.bus_settings().url == "pulsar://one:6650"


def test_the_environment_comes_before_the_context_in_use_and_after_an_explicit_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contexts.put("one", ONE, use=True)
    contexts.put("two", TWO, use=False)
    monkeypatch.setenv("MAGNETAR_PULSAR_URL", "pulsar://environment:6650")
    assert contexts.bus_settings().url == "pulsar://environment:6650"
    assert not contexts.bus_settings().token
    monkeypatch.setenv("MAGNETAR_CONTEXT", "two")
    assert contexts.bus_settings().url == "pulsar://two:6650"


def test_what_a_context_does_not_set_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts.put("two", TWO, use=True)
    monkeypatch.setenv("MAGNETAR_PULSAR_TOKEN", "from outside")
    assert contexts.bus_settings().token == "from outside"


def test_an_unknown_context_is_not_found_and_the_known_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts.put("one", ONE, use=True)
    monkeypatch.setenv("MAGNETAR_CONTEXT", "three")
    with pytest.raises(NotFound, match="'three'") as raised:
        contexts.bus_settings()
    assert "one" in raised.value.hint


def test_the_file_is_its_owners_only(file: Path) -> None:
    contexts.put("one", ONE, use=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_changing_one_field_of_a_context_keeps_the_others() -> None:
    contexts.put("one", ONE, use=False)
    contexts.put("one", BrokerContext(admin_url="http://one:8080"), use=False)
    assert contexts.load().named("one") == BrokerContext(
        url="pulsar://one:6650", token="hush", admin_url="http://one:8080"
    )


def test_a_file_that_is_not_one_of_ours_is_refused_with_the_field(file: Path) -> None:
    file.parent.mkdir()
    file.write_text("contexts: {one: {urll: x}}")
    with pytest.raises(Misused, match=r"contexts\.one\.urll"):
        contexts.load()


def test_dropping_the_context_in_use_uses_none() -> None:
    contexts.put("one", ONE, use=True)
    contexts.drop("one")
    assert contexts.load() == contexts.Contexts()
