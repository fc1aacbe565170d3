"""The process-per-model adapter against real processes."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from magnetar_agent.adapters.base import Code, IndexState, Limits, LoadFailed, ModelSpec, ServerUnreachable
from magnetar_agent.adapters.process import ProcessAdapter, ProcessTemplate
from tests.support.leading import eventually

_COMMAND = (
    sys.executable, str(Path(__file__).with_name("tiny_server.py")),
    "{model}", "--served-model-name", "{name}", "--host", "{host}", "--port", "{port}",
)  # fmt: skip
_TINY = ProcessTemplate(kind="tiny", command=_COMMAND, capabilities=("multiply",))
_LIMITS = Limits(load_seconds=30.0)


@pytest.fixture(params=["openai list", "v2 ready url"])
def adapter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProcessAdapter]:
    template = _TINY
    if request.param == "v2 ready url":
        template = ProcessTemplate(kind="tiny", command=_COMMAND, model_ready_path="/v2/models/{name}/ready")
    made = ProcessAdapter(template, tmp_path / "logs", limits=_LIMITS, grace_seconds=5.0)
    yield made
    made.close()


def model(folder: Path, factor: float) -> Path:
    folder.mkdir()
    (folder / "factor.txt").write_text(str(factor))
    return folder


def infer(adapter: ProcessAdapter, name: str) -> list[float]:
    answer = httpx.post(f"{adapter.endpoint(name)}/v2/models/{name}/infer", json={"inputs": [{"data": [1.0, 2.0]}]})
    return answer.json()["outputs"][0]["data"]


def test_each_model_is_a_process_of_its_own(adapter: ProcessAdapter, tmp_path: Path) -> None:
    """Two models, two processes, two URLs; unloading one ends its process and leaves the other serving."""
    adapter.load(ModelSpec("default_two_1", model(tmp_path / "two", 2)))
    adapter.load(ModelSpec("default_three_1", model(tmp_path / "three", 3)))
    assert (infer(adapter, "default_two_1"), infer(adapter, "default_three_1")) == ([2.0, 4.0], [3.0, 6.0])
    assert adapter.load(ModelSpec("default_two_1", tmp_path / "two")).already
    first, _ = adapter.pids()
    adapter.unload("default_two_1")
    adapter.unload("default_two_1")
    assert not psutil.pid_exists(first)
    assert {name: entry.state for name, entry in adapter.index().items()} == {"default_three_1": IndexState.READY}
    assert infer(adapter, "default_three_1") == [3.0, 6.0]
    assert adapter.server_info() == ("tiny", "0.1")
    with pytest.raises(ServerUnreachable):
        adapter.endpoint("default_two_1")


def test_a_process_sees_only_its_devices(tmp_path: Path) -> None:
    """A model placed on host memory sees no GPU at all."""
    adapter = ProcessAdapter(_TINY, tmp_path / "logs", limits=_LIMITS)
    try:
        for name, devices, seen in (("a", ("GPU-1", "GPU-2"), "GPU-1,GPU-2"), ("b", ("cpu",), "")):
            adapter.load(ModelSpec(name, model(tmp_path / name, 1), devices=devices))
            assert httpx.get(f"{adapter.endpoint(name)}/v1/models").json()["data"][0]["devices"] == seen
    finally:
        adapter.close()


def test_a_process_that_ends_during_load_gives_its_last_words(adapter: ProcessAdapter, tmp_path: Path) -> None:
    """The failure holds the end of its stderr, and nothing stays behind."""
    broken = model(tmp_path / "broken", 1)
    (broken / "factor.txt").write_text("not a number")
    with pytest.raises(LoadFailed) as caught:
        adapter.load(ModelSpec("default_broken_1", broken))
    assert caught.value.code == Code.LOAD_FAILED
    assert "could not convert string to float: 'not a number'" in caught.value.message
    assert adapter.index() == {}
    assert adapter.pids() == ()


def test_out_of_memory_has_a_code_of_its_own(adapter: ProcessAdapter, tmp_path: Path) -> None:
    """CUDA's own words are recognised."""
    with pytest.raises(LoadFailed) as caught:
        adapter.load(ModelSpec("default_greedy_1", model(tmp_path / "greedy", -1)))
    assert caught.value.code == Code.LOAD_FAIL_MEMORY


def test_health_is_not_readiness(tmp_path: Path) -> None:
    """S53, S54: a process whose health is 200 and whose model never serves fails by time-out and is ended."""
    adapter = ProcessAdapter(_TINY, tmp_path / "logs", limits=Limits(load_seconds=3.0))
    with pytest.raises(LoadFailed) as caught:
        adapter.load(ModelSpec("default_never_1", model(tmp_path / "m", 1), parameters={"never-ready": ""}))
    assert (caught.value.code, caught.value.retriable) == (Code.TIMEOUT, True)
    assert adapter.pids() == ()
    adapter.close()


def test_a_process_that_dies_later_is_seen_and_can_be_loaded_again(adapter: ProcessAdapter, tmp_path: Path) -> None:
    """S44: the index says that the model is gone, and why; a load replaces it."""
    spec = ModelSpec("default_mortal_1", model(tmp_path / "mortal", 2))
    adapter.load(spec)
    (pid,) = adapter.pids()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: adapter.index()[spec.name].state is IndexState.UNAVAILABLE, what="the index shows the death")
    assert "-9" in adapter.index()[spec.name].reason
    assert not adapter.ready(spec.name)
    assert not adapter.load(spec).already
    assert infer(adapter, spec.name) == [2.0, 4.0]


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """Unload ends within the grace period."""
    adapter = ProcessAdapter(_TINY, tmp_path / "logs", limits=_LIMITS, grace_seconds=0.2)
    adapter.load(ModelSpec("default_stubborn_1", model(tmp_path / "m", 1), parameters={"stubborn": ""}))
    (pid,) = adapter.pids()
    adapter.unload("default_stubborn_1")
    assert not psutil.pid_exists(pid)
    adapter.close()


@pytest.mark.parametrize("key", ["port", "host", "model", "Bad Key", "-x"])
def test_a_model_never_sets_what_the_agent_decides(adapter: ProcessAdapter, tmp_path: Path, key: str) -> None:
    """Parameters come from an event; they are options, and not these."""
    with pytest.raises(LoadFailed) as caught:
        adapter.load(ModelSpec("default_sly_1", model(tmp_path / "m", 1), parameters={key: "1"}))
    assert caught.value.code == Code.UNSUPPORTED


def test_a_missing_artifact_starts_nothing(adapter: ProcessAdapter, tmp_path: Path) -> None:
    """Final, before any process."""
    with pytest.raises(LoadFailed) as caught:
        adapter.load(ModelSpec("default_missing_1", tmp_path / "nowhere"))
    assert caught.value.code == Code.ARTIFACT_MISSING
    assert adapter.pids() == ()


def test_capabilities_are_the_kind_and_what_it_was_given(tmp_path: Path) -> None:
    """What a server of this kind is asked by."""
    assert ProcessAdapter(_TINY, tmp_path).capabilities() == ("multiply", "tiny")
