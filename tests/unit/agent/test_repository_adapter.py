"""The repository API's corners, against a server scripted by hand; the real ones are in `tests/e2e`."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from magnetar_agent.adapters.base import (
    RETRIABLE,
    Code,
    IndexState,
    Limits,
    LoadFailed,
    ModelSpec,
    ServerUnreachable,
    UnloadFailed,
)
from magnetar_agent.adapters.mlserver import MLServerAdapter
from magnetar_agent.adapters.triton import renamed

LIMITS = Limits(attempts=3, elapsed_seconds=5.0, load_seconds=2.0, unload_seconds=0.5, poll_seconds=0.001)


class ScriptedServer(httpx.BaseTransport):
    """A V2 server whose index moves one step at each look.

    Args:
        states: What the index says of the model at each look; the last stays. None: not listed.
        load: Status code of the answer to a load.
        ready: What the model's own ready URL says at each look; the last stays.
        failures: Exceptions that the first calls meet in place of an answer.
    """

    def __init__(
        self,
        states: list[str | None],
        *,
        load: int = 200,
        ready: list[int] | None = None,
        failures: list[type[httpx.TransportError]] | None = None,
    ) -> None:
        self.states, self.load, self.ready, self.failures = states, load, ready or [200], failures or []
        self.calls: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.calls.append(path.rpartition("/")[2])
        if self.failures:
            raise self.failures.pop(0)("scripted", request=request)
        match self.calls[-1]:
            case "index":
                state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
                rows = [{"name": "other", "state": "READY"}]
                return httpx.Response(200, json=rows if state is None else [*rows, {"name": "m", "state": state}])
            case "ready":
                return httpx.Response(self.ready.pop(0) if len(self.ready) > 1 else self.ready[0])
            case "load":
                return httpx.Response(self.load)
            case _:
                return httpx.Response(200)


@pytest.fixture
def adapt(tmp_path: Path) -> Callable[[ScriptedServer], MLServerAdapter]:
    (tmp_path / "artifact").mkdir()
    (tmp_path / "artifact" / "model.joblib").write_bytes(b"x")
    return lambda server: MLServerAdapter("http://server", tmp_path / "models", limits=LIMITS, transport=server)


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    return ModelSpec("m", tmp_path / "artifact", ("sklearn",))


def test_every_code_says_whether_it_is_worth_another_try() -> None:
    """The table is complete."""
    assert set(RETRIABLE) == set(Code)


def test_load_waits_for_index_and_for_the_models_own_ready(
    adapt: Callable[[ScriptedServer], MLServerAdapter], spec: ModelSpec
) -> None:
    """READY in the index with a ready URL of 400 is not loaded yet."""
    server = ScriptedServer([None, "LOADING", "READY"], ready=[400, 400, 200])
    assert not adapt(server).load(spec).already
    assert server.calls.count("ready") == 3


def test_a_success_that_the_index_denies_is_a_failure(
    adapt: Callable[[ScriptedServer], MLServerAdapter], spec: ModelSpec, tmp_path: Path
) -> None:
    """The index is believed, and the folder does not stay to be loaded by a restart."""
    for state in ("UNAVAILABLE", "UNKNOWN", None):
        with pytest.raises(LoadFailed) as caught:
            adapt(ScriptedServer([None, state], ready=[404])).load(spec)
        assert caught.value.code == Code.LOAD_FAILED
        assert not (tmp_path / "models" / "m").exists()


def test_a_refusal_is_believed_though_the_index_says_ready(
    adapt: Callable[[ScriptedServer], MLServerAdapter], spec: ModelSpec
) -> None:
    """READY may be what was there before."""
    with pytest.raises(LoadFailed):
        adapt(ScriptedServer([None, "READY", None], load=500, ready=[404])).load(spec)


def test_a_model_that_never_gets_ready_is_a_timeout(
    adapt: Callable[[ScriptedServer], MLServerAdapter], spec: ModelSpec
) -> None:
    """Bounded by `load_seconds`."""
    with pytest.raises(LoadFailed) as caught:
        adapt(ScriptedServer([None, "LOADING"])).load(spec)
    assert caught.value.code == Code.TIMEOUT


def test_unload_returns_when_the_index_says_so(adapt: Callable[[ScriptedServer], MLServerAdapter]) -> None:
    """Triton answers 200 while the index still says UNLOADING."""
    server = ScriptedServer(["UNLOADING", "UNLOADING", "UNAVAILABLE"], ready=[400])
    adapt(server).unload("m")
    assert server.calls.count("index") == 3


def test_an_unload_that_never_ends_is_a_failure(
    adapt: Callable[[ScriptedServer], MLServerAdapter], tmp_path: Path
) -> None:
    """And its folder stays: MLServer would forget a model that it still serves."""
    (tmp_path / "models" / "m").mkdir(parents=True)
    with pytest.raises(UnloadFailed) as caught:
        adapt(ScriptedServer(["UNLOADING"])).unload("m")
    assert (caught.value.code, caught.value.retriable) == (Code.TIMEOUT, True)
    assert (tmp_path / "models" / "m").exists()


def test_a_broken_connection_is_tried_again_within_the_limits(
    adapt: Callable[[ScriptedServer], MLServerAdapter],
) -> None:
    """Two failures and an answer are an answer; three are none."""
    assert (
        adapt(ScriptedServer(["READY"], failures=[httpx.ConnectError, httpx.ReadError])).index()["m"].state == "READY"
    )
    server = ScriptedServer(["READY"], failures=[httpx.ConnectError] * 3)
    with pytest.raises(ServerUnreachable):
        adapt(server).index()
    assert len(server.calls) == LIMITS.attempts


def test_a_read_timeout_is_not_tried_again(adapt: Callable[[ScriptedServer], MLServerAdapter]) -> None:
    """A load that takes long must not be asked for twice."""
    server = ScriptedServer(["READY"], failures=[httpx.ReadTimeout])
    with pytest.raises(ServerUnreachable):
        adapt(server).index()
    assert len(server.calls) == 1


def test_a_state_we_do_not_know_is_unknown(adapt: Callable[[ScriptedServer], MLServerAdapter]) -> None:
    """A newer server's word never stops the heartbeat."""
    assert adapt(ScriptedServer(["HIBERNATING"])).index()["m"].state is IndexState.UNKNOWN


def test_parameters_travel_as_the_runtimes_extra(
    adapt: Callable[[ScriptedServer], MLServerAdapter], spec: ModelSpec, tmp_path: Path
) -> None:
    """MLServer's settings made from a spec."""
    given = ModelSpec("m", spec.artifact, ("sklearn",), parameters={"threads": "2"})
    adapt(ScriptedServer([None, "READY"])).load(given)
    assert json.loads((tmp_path / "models" / "m" / "model-settings.json").read_text()) == {
        "name": "m",
        "implementation": "mlserver_sklearn.SKLearnModel",
        "parameters": {"uri": "./model.joblib", "extra": {"threads": "2"}},
    }


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('name: "a"', 'name: "n"'),
        ("input [{name: 'x'}]", "name: \"n\"\ninput [{name: 'x'}]"),
        ('input [{name: "x"}] name:"a" # name: "b"', 'input [{name: "x"}] name:"n" # name: "b"'),
        ('# name: "b"\nname : "a"', '# name: "b"\nname : "n"'),
    ],
)
def test_only_the_models_own_name_is_replaced(config: str, expected: str) -> None:
    """A config's tensors have names too."""
    assert renamed(config, "n") == expected
