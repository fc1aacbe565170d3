"""The canary against a real local server whose engine hangs while its health says 200."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from magnetar_agent.canary import Canary
from magnetar_events.reports import InventoryReported, ModelLoaded, ModelLoadFailed
from tests.support.adapters import FakeAdapter
from tests.support.leading import eventually
from tests.support.stage import IRIS, SERVED, staged


class Engine:
    """An inference server; ``hang`` says which models never answer, ``status`` what the others do."""

    def __init__(self) -> None:
        self.hang: set[str] = set()
        self.status = 200
        self.asked: list[str] = []
        self.let_go = threading.Event()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                engine.asked.append(self.path)
                self.rfile.read(int(self.headers["content-length"]))
                if any(name in self.path for name in engine.hang):
                    engine.let_go.wait(30)
                self.send_response(engine.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def stop(self) -> None:
        self.let_go.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.stop()


def adapter_for(engine: Engine) -> FakeAdapter:
    made = FakeAdapter()
    made.url, made.kind = engine.url, "mlserver"
    return made


def canary(adapter: FakeAdapter) -> Canary:
    return Canary(adapter, set, lambda: None, every_s=0, patience_s=0.2, failed=lambda _: None)


@pytest.mark.parametrize("status", [200, 400, 404, 500])
def test_any_answer_is_an_answer(engine: Engine, status: int) -> None:
    """The canary's request may well be nonsense to the model; an engine that says so lives."""
    engine.status = status
    bird = canary(adapter_for(engine))
    assert bird.sings(SERVED)
    assert engine.asked == [f"/v2/models/{SERVED}/infer"]
    bird.close()


def test_silence_is_none(engine: Engine) -> None:
    """Neither is a refused connection."""
    engine.hang = {SERVED}
    adapter = adapter_for(engine)
    bird = canary(adapter)
    assert not bird.sings(SERVED)
    adapter.url = "http://127.0.0.1:9"
    assert not bird.sings(SERVED)
    bird.close()


def test_models_without_a_repository_server_are_asked_as_openai_does(engine: Engine) -> None:
    """vLLM's kind has no V2 inference."""
    adapter = adapter_for(engine)
    adapter.kind = "vllm"
    bird = canary(adapter)
    assert bird.sings(SERVED)
    assert engine.asked == ["/v1/completions"]
    bird.close()


def test_s54_hung_engine_is_reported_not_ready_and_reloaded_afresh(engine: Engine, tmp_path: Path) -> None:
    """Its index and health say that all is well: two silences, and the next load begins with an unload."""
    with staged(tmp_path, adapter_for(engine), canary_s=0.02, canary_patience_s=0.2) as stage:
        stage.load(1)
        stage.load(2, "default/well")
        stage.hears(ModelLoaded, 1)
        stage.hears(ModelLoaded, 2)
        engine.hang = {SERVED}
        told = stage.hears(InventoryReported, times=2)
        assert {(m.model, m.ready) for m in told.models} == {(IRIS, False), ("default/well", True)}
        engine.hang = set()
        engine.let_go.set()
        stage.load(3)
        stage.hears(ModelLoaded, 3)
        assert stage.adapter.calls[-2:] == [("unload", SERVED), ("load", SERVED)]
        told = stage.inventory(4)
        assert {(m.model, m.ready) for m in told.models} == {(IRIS, True), ("default/well", True)}


def test_load_that_fails_leaves_the_mark_of_a_hung_engine(engine: Engine, tmp_path: Path) -> None:
    """Else the next attempt would find it ready and believe it."""
    with staged(tmp_path, adapter_for(engine), canary_s=0.02, canary_patience_s=0.1) as stage:
        stage.load(1)
        stage.hears(ModelLoaded, 1)
        engine.hang = {SERVED}
        stage.hears(InventoryReported, times=2)
        stage.load(2, storage_uri=(tmp_path / "nothing").as_uri())
        stage.hears(ModelLoadFailed, 2)
        engine.let_go.set()
        stage.load(3)
        stage.hears(ModelLoaded, 3)
        assert stage.adapter.calls[-2:] == [("unload", SERVED), ("load", SERVED)]


def test_canaries_go_round_and_stop(engine: Engine, tmp_path: Path) -> None:
    """Every loaded model in turn; none once the agent is closed; none at all when they are switched off."""
    with staged(tmp_path, adapter_for(engine), canary_s=0.02) as stage:
        for n in range(3):
            stage.load(n + 1, f"default/m{n}")
        eventually(lambda: {path.split("/")[3] for path in engine.asked} == {f"default_m{n}_1" for n in range(3)})
    asked = len(engine.asked)
    (tmp_path / "off").mkdir()
    with staged(tmp_path / "off", adapter_for(engine), canary_s=0) as stage:
        stage.load(1)
        stage.inventory(2)
    assert len(engine.asked) == asked
