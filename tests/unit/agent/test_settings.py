"""The agent's settings: flags' values, the environment, and the whole as one JSON object."""

import json
import socket

import pytest
from pydantic import ValidationError

from magnetar_agent.settings import AgentSettings


def test_identity_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server, replica, host and zone among them; a value given outright wins."""
    for name, value in {"SERVER": "gpu", "REPLICA": "3", "HOST": "node-7", "ZONE": "b", "LABELS": "a=1, b"}.items():
        monkeypatch.setenv(f"MAGNETAR_AGENT_{name}", value)
    settings = AgentSettings(replica=4)
    assert (settings.server, settings.replica, settings.host_name, settings.zone) == ("gpu", 4, "node-7", "b")
    assert settings.label_map() == {"a": "1", "b": ""}


def test_host_is_the_machines_own_name_unless_told() -> None:
    """Two agents on one machine agree on it without being told."""
    assert AgentSettings().host_name == socket.gethostname()


def test_configuration_is_one_json_object_and_single_settings_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """For whoever has one place to put everything."""
    whole = {"server": "gpu", "replica": 2, "kind": "triton", "capabilities": "python, onnx"}
    monkeypatch.setenv("MAGNETAR_AGENT_CONFIGURATION", json.dumps(whole))
    monkeypatch.setenv("MAGNETAR_AGENT_REPLICA", "5")
    settings = AgentSettings()
    assert (settings.server, settings.replica, settings.kind) == ("gpu", 5, "triton")
    assert settings.capability_list() == ("python", "onnx")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"configuration": "{"}, "not JSON"),
        ({"configuration": "[]"}, "JSON object"),
        ({"configuration": '{"sever": "x"}'}, "unknown fields: sever"),
        ({"url": "http://127.0.0.1:8080"}, "model repository"),
        ({"kind": "process"}, "needs the command"),
        ({"kind": "torchserve"}, "mlserver"),
        ({"replica": -1}, "greater than or equal to 0"),
    ],
)
def test_wrong_settings_are_refused_by_name(values: dict[str, object], says: str) -> None:
    """At the start, and with what to do."""
    with pytest.raises(ValidationError, match=says):
        AgentSettings(**values)  # type: ignore[arg-type]
