"""The adapter against a real MLServer."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from magnetar_agent.adapters.base import Code, IndexState, Limits, LoadFailed, ModelSpec, ServerUnreachable
from magnetar_agent.adapters.mlserver import MLServerAdapter, installed_runtimes
from magnetar_agent.environments import Environment
from magnetar_agent.launch import launch_mlserver
from magnetar_agent.server_process import ServerProcess
from tests.e2e.loading import kill_during_a_load, state

pytestmark = pytest.mark.mlserver

_SLOW = """
import pathlib, time
from mlserver import MLModel
class Slow(MLModel):
    async def load(self):
        pathlib.Path(self.settings.parameters.extra["started"]).touch()
        time.sleep(600)
"""
_FALSE = """
from mlserver import MLModel
class Unwilling(MLModel):
    async def load(self):
        return False
"""


@pytest.fixture
def adapter(mlserver: ServerProcess) -> Iterator[MLServerAdapter]:
    made = MLServerAdapter(mlserver.launch.url, mlserver.launch.repository, diagnose=mlserver.tail)
    yield made
    made.close()


def infer(url: str, name: str) -> httpx.Response:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}
    return httpx.post(f"{url}/v2/models/{name}/infer", json={"inputs": [tensor]})


def custom(folder: Path, source: str, implementation: str, **extra: str) -> Path:
    """An artifact whose own settings name a class that it brings along."""
    folder.mkdir()
    module = implementation.partition(".")[0]
    (folder / f"{module}.py").write_text(source)
    settings = {"name": "given", "implementation": implementation, "parameters": {"extra": extra}}
    (folder / "model-settings.json").write_text(json.dumps(settings))
    return folder


def test_a_model_is_loaded_serves_and_is_unloaded(adapter: MLServerAdapter, iris_artifact: Path) -> None:
    """After load it answers; after unload it is gone from the index and answers no more."""
    spec = ModelSpec("default_iris_1", iris_artifact, ("sklearn",))
    result = adapter.load(spec)
    assert (result.already, state(adapter, spec.name)) == (False, IndexState.READY)
    assert infer(adapter.endpoint(spec.name), spec.name).json()["outputs"][0]["data"] == [0]
    adapter.unload(spec.name)
    assert state(adapter, spec.name) is None
    assert not adapter.ready(spec.name)
    assert infer(adapter.endpoint(spec.name), spec.name).status_code == httpx.codes.NOT_FOUND


def test_a_repeated_load_does_nothing_and_a_repeated_unload_is_success(
    adapter: MLServerAdapter, iris_artifact: Path
) -> None:
    """Commands are repeated; acting twice would be a gap in service."""
    spec = ModelSpec("default_twice_1", iris_artifact, ("sklearn",))
    adapter.load(spec)
    assert adapter.load(spec).already
    adapter.unload(spec.name)
    adapter.unload(spec.name)
    adapter.unload("never_heard_of")


def test_the_artifacts_own_settings_keep_all_but_their_name(
    adapter: MLServerAdapter, iris_artifact: Path, tmp_path: Path
) -> None:
    """A model with a `model-settings.json` is loaded as its author says, under the name that the scheduler gave."""
    given = {
        "name": "mine",
        "implementation": "mlserver_sklearn.SKLearnModel",
        "parameters": {"uri": "./m.joblib", "version": "v7"},
    }
    (tmp_path / "m.joblib").write_bytes((iris_artifact / "model.joblib").read_bytes())
    (tmp_path / "model-settings.json").write_text(json.dumps(given))
    adapter.load(ModelSpec("default_given_1", tmp_path))
    assert infer(adapter.endpoint(""), "default_given_1").json()["model_version"] == "v7"
    assert json.loads((tmp_path / "model-settings.json").read_text()) == given
    adapter.unload("default_given_1")


def test_a_broken_artifact_fails_with_the_servers_reason_and_leaves_nothing(
    adapter: MLServerAdapter, tmp_path: Path
) -> None:
    """S52, S53: MLServer stays ready as a whole, and this one model is not."""
    (tmp_path / "model.joblib").write_bytes(b"garbage")
    with pytest.raises(LoadFailed) as caught:
        adapter.load(ModelSpec("default_broken_1", tmp_path, ("sklearn",)))
    assert caught.value.code == Code.LOAD_FAILED
    assert "ValueError" in caught.value.message, "MLServer's own answer says only Internal Server Error"
    assert httpx.get(f"{adapter.endpoint('')}/v2/health/ready").status_code == httpx.codes.OK
    assert not adapter.ready("default_broken_1")
    assert state(adapter, "default_broken_1") is None


def test_a_200_after_a_failed_load_is_not_believed(adapter: MLServerAdapter, tmp_path: Path) -> None:
    """A runtime whose `load()` returns False is answered with 200; the index says otherwise."""
    with pytest.raises(LoadFailed) as caught:
        adapter.load(ModelSpec("default_unwilling_1", custom(tmp_path / "a", _FALSE, "unwilling.Unwilling")))
    assert "200" in caught.value.message
    assert state(adapter, "default_unwilling_1") is None


@pytest.mark.parametrize(
    ("requirements", "files", "code"),
    [
        (("sklearn",), None, Code.ARTIFACT_MISSING),
        (("sklearn",), ["readme.md"], Code.ARTIFACT_INVALID),
        (("sklearn",), ["one.joblib", "two.joblib"], Code.ARTIFACT_INVALID),
        (("sklearn",), ["a/model-settings.json", "b/model-settings.json"], Code.ARTIFACT_INVALID),
        (("tensorrt",), ["model.joblib"], Code.UNSUPPORTED),
    ],
)
def test_what_can_never_load_is_final(
    adapter: MLServerAdapter, tmp_path: Path, requirements: tuple[str, ...], files: list[str] | None, code: Code
) -> None:
    """S58: an artifact that is missing, ambiguous or not for this server is refused before the server is asked."""
    artifact = tmp_path / "artifact"
    for file in files or []:
        (artifact / file).parent.mkdir(parents=True, exist_ok=True)
        (artifact / file).write_bytes(b"{}")
    with pytest.raises(LoadFailed) as caught:
        adapter.load(ModelSpec("default_final_1", artifact, requirements))
    assert (caught.value.code, caught.value.retriable) == (code, False)
    assert "default_final_1" not in adapter.index()


@pytest.mark.parametrize("name", ["../escape", "a/b", "", "Upper", "a..b"])
def test_a_name_never_leaves_the_repository(adapter: MLServerAdapter, iris_artifact: Path, name: str) -> None:
    """A server-side name is one folder."""
    with pytest.raises(LoadFailed):
        adapter.load(ModelSpec(name, iris_artifact, ("sklearn",)))


def test_settings_never_point_out_of_the_artifact(adapter: MLServerAdapter, tmp_path: Path) -> None:
    """Only what the pinned digest covers is loaded."""
    (tmp_path / "model-settings.json").write_text(
        '{"implementation": "x.Y", "parameters": {"uri": "../../other/model.joblib"}}'
    )
    with pytest.raises(LoadFailed) as caught:
        adapter.load(ModelSpec("default_outside_1", tmp_path))
    assert caught.value.code == Code.ARTIFACT_INVALID


def test_the_server_says_what_it_is(adapter: MLServerAdapter, mlserver_env: Environment) -> None:
    """Name and version from the server, capabilities from what is installed beside it."""
    assert adapter.server_info() == ("mlserver", "1.7.1")
    assert installed_runtimes(mlserver_env.python) == ("sklearn",)
    assert adapter.alive()


def test_a_server_killed_during_a_load_fails_it_and_comes_back_empty(mlserver_env: Environment, tmp_path: Path) -> None:
    """The load ends at once with a retriable code; the supervisor starts the server again, with nothing loaded."""
    restarted = threading.Event()
    server = ServerProcess(lambda: launch_mlserver(mlserver_env, tmp_path / "server"), on_restart=restarted.set)
    server.start()
    adapter = MLServerAdapter(server.launch.url, server.launch.repository, limits=Limits(attempts=1, load_seconds=60))
    try:
        started = tmp_path / "started"
        artifact = custom(tmp_path / "slow", _SLOW, "slow.Slow", started=str(started))
        kill_during_a_load(server, adapter, ModelSpec("default_slow_1", artifact), started.exists)
        assert restarted.wait(60)
        assert server.restarts == 1
        assert adapter.index() == {}
    finally:
        server.stop()
    assert not adapter.alive()
    with pytest.raises(ServerUnreachable):
        adapter.index()
    adapter.close()


def test_a_load_that_takes_too_long_is_a_timeout(mlserver_env: Environment, tmp_path: Path) -> None:
    """A server that hangs in a load is not waited for without end, though it is alive as a process."""
    server = ServerProcess(lambda: launch_mlserver(mlserver_env, tmp_path / "server"), grace_seconds=0.5)
    server.start()
    limits = Limits(attempts=1, load_seconds=1.0, ask_seconds=0.5, unload_seconds=1.0)
    adapter = MLServerAdapter(server.launch.url, server.launch.repository, limits=limits)
    try:
        spec = ModelSpec(
            "default_hang_1", custom(tmp_path / "slow", _SLOW, "slow.Slow", started=str(tmp_path / "started"))
        )
        with pytest.raises(LoadFailed) as caught:
            adapter.load(spec)
        assert (caught.value.code, caught.value.retriable) == (Code.TIMEOUT, True)
        assert not adapter.ready(spec.name)
        with pytest.raises(LoadFailed):
            adapter.load(replace(spec, name="default_other_1"))
    finally:
        adapter.close()
        server.stop()
