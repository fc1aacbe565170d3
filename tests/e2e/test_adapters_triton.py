"""The adapter against a real Triton with a Python-backend model."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from magnetar_agent.adapters.base import Code, IndexState, Limits, LoadFailed, ModelSpec
from magnetar_agent.adapters.triton import TritonAdapter, installed_backends
from magnetar_agent.environments import Environment
from magnetar_agent.launch import launch_triton
from magnetar_agent.server_process import ServerProcess
from tests.e2e.loading import kill_during_a_load, state

pytestmark = pytest.mark.triton

_DOUBLE = """
import triton_python_backend_utils as pb
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [-1]})
        return config
    def execute(self, requests):
        xs = [pb.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        return [pb.InferenceResponse([pb.Tensor("y", x * 2)]) for x in xs]
"""
_SLOW = """
import pathlib, time
class TritonPythonModel:
    def initialize(self, args):
        pathlib.Path({started!r}).touch()
        time.sleep(600)
"""
_CONFIG = """
# name: "not this one"
backend: "python"  name: "given"
input [{ name: "x", data_type: TYPE_FP32, dims: [ -1 ] }]
output [{ name: "y", data_type: TYPE_FP32, dims: [ -1 ] }]
parameters { key: "name: x" value { string_value: "}" } }
instance_group [{ kind: KIND_CPU }]
"""


@pytest.fixture
def adapter(triton: ServerProcess) -> Iterator[TritonAdapter]:
    made = TritonAdapter(triton.launch.url, triton.launch.repository, backends=("python",), diagnose=triton.tail)
    yield made
    made.close()


@pytest.fixture
def double(tmp_path: Path) -> Path:
    """An artifact that is one `model.py`, without config or version folder."""
    (tmp_path / "double").mkdir()
    (tmp_path / "double" / "model.py").write_text(_DOUBLE)
    return tmp_path / "double"


def infer(url: str, name: str) -> httpx.Response:
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.5]}
    return httpx.post(f"{url}/v2/models/{name}/infer", json={"inputs": [tensor]})


def test_a_model_is_loaded_serves_and_is_unloaded(adapter: TritonAdapter, double: Path) -> None:
    """Unload returns after the index says that the model is gone, not when Triton answers."""
    spec = ModelSpec("default_double_1", double, ("python",))
    adapter.load(spec)
    assert adapter.load(spec).already
    assert state(adapter, spec.name) is IndexState.READY
    assert infer(adapter.endpoint(spec.name), spec.name).json()["outputs"][0]["data"] == [2.0, 5.0]
    adapter.unload(spec.name)
    assert state(adapter, spec.name) is None
    assert infer(adapter.endpoint(spec.name), spec.name).status_code in {400, 404}
    adapter.unload(spec.name)
    adapter.unload("never_heard_of")


def test_the_artifacts_own_config_keeps_all_but_its_name(
    adapter: TritonAdapter, double: Path, triton: ServerProcess
) -> None:
    """The names of tensors, in comments and in strings are not the model's."""
    (double / "1").mkdir()
    (double / "model.py").rename(double / "1" / "model.py")
    (double / "config.pbtxt").write_text(_CONFIG)
    adapter.load(ModelSpec("default_given_1", double))
    written = (triton.launch.repository / "default_given_1" / "config.pbtxt").read_text()
    assert written == _CONFIG.replace('"given"', '"default_given_1"')
    assert infer(adapter.endpoint(""), "default_given_1").json()["outputs"][0]["data"] == [2.0, 5.0]
    adapter.unload("default_given_1")


def test_a_broken_artifact_fails_with_the_servers_reason_and_leaves_nothing(
    adapter: TritonAdapter, double: Path
) -> None:
    """S52, S53: Triton stays ready as a whole, and this one model is not."""
    (double / "model.py").write_text('raise RuntimeError("boom")')
    with pytest.raises(LoadFailed) as caught:
        adapter.load(ModelSpec("default_broken_1", double, ("python",)))
    assert caught.value.code == Code.LOAD_FAILED
    assert "boom" in caught.value.message
    assert httpx.get(f"{adapter.endpoint('')}/v2/health/ready").status_code == httpx.codes.OK
    assert not adapter.ready("default_broken_1")
    assert state(adapter, "default_broken_1") in {None, IndexState.UNAVAILABLE}


def test_running_out_of_memory_has_a_code_of_its_own(adapter: TritonAdapter, double: Path) -> None:
    """The scheduler may try a server with more of it."""
    (double / "model.py").write_text("raise MemoryError('CUDA out of memory')")
    with pytest.raises(LoadFailed) as caught:
        adapter.load(ModelSpec("default_greedy_1", double, ("python",)))
    assert (caught.value.code, caught.value.retriable) == (Code.LOAD_FAIL_MEMORY, True)


@pytest.mark.parametrize(
    ("requirements", "file", "devices", "code"),
    [
        (("python",), None, ("cpu",), Code.ARTIFACT_MISSING),
        (("python",), "readme.md", ("cpu",), Code.ARTIFACT_INVALID),
        (("onnx",), "model.onnx", ("cpu",), Code.UNSUPPORTED),
        (("python",), "model.py", ("GPU-unknown",), Code.UNSUPPORTED),
    ],
)
def test_what_can_never_load_is_final(
    adapter: TritonAdapter,
    tmp_path: Path,
    requirements: tuple[str, ...],
    file: str | None,
    devices: tuple[str, ...],
    code: Code,
) -> None:
    """S58: refused before the server is asked."""
    artifact = tmp_path / "artifact"
    if file:
        artifact.mkdir()
        (artifact / file).write_text("x")
    with pytest.raises(LoadFailed) as caught:
        adapter.load(ModelSpec("default_final_1", artifact, requirements, devices=devices))
    assert (caught.value.code, caught.value.retriable) == (code, False)


def test_the_server_says_what_it_is(adapter: TritonAdapter, triton_env: Environment) -> None:
    """Name and version from the server, capabilities from its backends."""
    assert adapter.server_info() == ("triton", "2.51.0")
    assert installed_backends(triton_env.server.parent.parent / "backends") == ("python",)


def test_a_server_killed_during_a_load_fails_it_and_comes_back_empty(triton_env: Environment, tmp_path: Path) -> None:
    """The load ends at once with a retriable code; the supervisor starts the server again, with nothing loaded."""
    restarted = threading.Event()
    server = ServerProcess(lambda: launch_triton(triton_env, tmp_path / "server"), on_restart=restarted.set)
    server.start()
    adapter = TritonAdapter(server.launch.url, server.launch.repository, limits=Limits(attempts=1, load_seconds=60))
    try:
        started = tmp_path / "started"
        (tmp_path / "model.py").write_text(_SLOW.format(started=str(started)))
        spec = ModelSpec("default_slow_1", tmp_path / "model.py", ("python",))
        kill_during_a_load(server, adapter, spec, started.exists)
        assert restarted.wait(60)
        assert state(adapter, "default_slow_1") in {None, IndexState.UNAVAILABLE}
    finally:
        server.stop()
        adapter.close()
