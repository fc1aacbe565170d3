"""What an operator sees of a service: structured logs, health and metrics."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from magnetar_common.errors import MagnetarError, Unguarded
from magnetar_common.metrics import TERM
from magnetar_common.ops import Health, OpsServer
from magnetar_common.settings import HttpSettings


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def client(health: Health) -> Iterator[httpx.Client]:
    async def terminate(request: Request) -> JSONResponse:
        return JSONResponse({"drained": (await request.json())["now"]})

    def broken(_: Request) -> JSONResponse:
        raise RuntimeError("out of paper")

    routes = [Route("/terminate", terminate, methods=["POST"]), Route("/broken", broken)]
    server = OpsServer(health, routes=routes).start()
    with httpx.Client(base_url=server.url, timeout=20) as made:
        yield made
    server.stop()


def test_ready_means_that_every_check_passes_and_each_is_named(health: Health, client: httpx.Client) -> None:
    health.add("bus", lambda: (True, "connected"))
    assert client.get("/readyz").json() == {"ok": True, "checks": {"bus": {"ok": True, "detail": "connected"}}}
    health.add("drain", lambda: (False, "draining"))
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["drain"] == {"ok": False, "detail": "draining"}


def test_alive_asks_only_the_checks_that_a_restart_can_mend(health: Health, client: httpx.Client) -> None:
    health.add("bus", lambda: (False, "gone"))
    assert client.get("/livez").json() == {"ok": True, "checks": {}}
    health.add("loop", lambda: (False, "stuck"), live=True)
    assert client.get("/livez").status_code == 503


def test_a_check_that_raises_has_failed(health: Health, client: httpx.Client) -> None:
    health.add("odd", lambda: (_ for _ in ()).throw(RuntimeError("mine")))
    assert client.get("/readyz").json()["checks"]["odd"] == {"ok": False, "detail": "RuntimeError: mine"}


def test_metrics_are_served_under_their_names(client: httpx.Client) -> None:
    TERM.set(7)
    text = client.get("/metrics").text
    assert "magnetar_term 7.0" in text
    for name in (
        "leader",
        "log_position",
        "input_lag",
        "decide_seconds",
        "decisions_total",
        "replicas",
        "lease_age_seconds",
        "load_seconds",
        "device_memory_bytes",
        "projector_lag",
    ):
        assert f"# HELP magnetar_{name} " in text


def test_a_service_adds_routes_of_its_own(client: httpx.Client) -> None:
    assert client.post("/terminate", json={"now": True}).json() == {"drained": True}


def test_errors_are_json(client: httpx.Client) -> None:
    assert client.get("/nothing").json() == {"error": "Not Found"}
    assert client.get("/terminate").json() == {"error": "Method Not Allowed"}
    answer = client.get("/broken")
    assert answer.status_code == 500
    assert answer.json() == {"error": "RuntimeError: out of paper"}


def test_a_taken_port_is_named(health: Health, client: httpx.Client) -> None:
    with pytest.raises(MagnetarError, match=rf"cannot listen on 127\.0\.0\.1:{client.base_url.port}: Address already"):
        OpsServer(health, port=client.base_url.port or 0).start()


def test_stopping_twice_or_before_the_start_is_harmless(health: Health) -> None:
    OpsServer(health).stop()
    server = OpsServer(health).start()
    server.stop()
    server.stop()


LOGGING = """
import logging, structlog
from magnetar_common.ops import configure_logging
configure_logging("agent", json=True)
structlog.get_logger("mine").info("loaded", model="iris")
structlog.get_logger("mine").debug("unseen")
logging.getLogger("theirs").warning("hello %s", "you")
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger("mine").exception("failed")
"""


def test_each_log_line_is_one_json_object_whoever_wrote_it() -> None:
    done = subprocess.run([sys.executable, "-c", LOGGING], stderr=subprocess.PIPE, text=True, check=True, timeout=60)
    own, theirs, failed = [json.loads(line) for line in done.stderr.splitlines()]
    assert (own["service"], own["event"], own["model"], own["level"]) == ("agent", "loaded", "iris", "info")
    assert (theirs["service"], theirs["event"], theirs["logger"]) == ("agent", "hello you", "theirs")
    assert "ZeroDivisionError" in failed["exception"]


def test_importing_ops_needs_no_http_extra() -> None:
    code = "import sys, magnetar_common.ops as ops; sys.exit('starlette' in sys.modules or 'uvicorn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# --- who may ask ----------------------------------------------------------------------------------------------------------


def test_beyond_loopback_it_does_not_start_without_a_token(health: Health, tmp_path: Path) -> None:
    """And says which variable to set; a name counts as the address of another machine."""
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(Unguarded, match="MAGNETAR_HTTP_TOKEN_FILE"):
            OpsServer(health, host=host, access=HttpSettings()).start()
    with pytest.raises(Unguarded, match="cannot be read"):
        OpsServer(health, access=HttpSettings(token_file=str(tmp_path / "nowhere"))).start()


def test_with_a_token_everything_but_health_asks_for_it(health: Health, tmp_path: Path) -> None:
    """Of health only whether all is well is said without it. A replaced file counts at once, and a lost one lets nobody in."""
    health.add("role", lambda: (True, "leading, and that is nobody's business"))
    file = tmp_path / "token"
    file.write_text("one\n")
    called: list[str] = []

    def terminate(_: Request) -> JSONResponse:
        called.append("terminate")
        return JSONResponse({})

    server = OpsServer(
        health,
        host="0.0.0.0",
        routes=[Route("/terminate", terminate, methods=["POST"])],
        access=HttpSettings(token_file=str(file)),
    ).start()
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=20) as client:

        def asked(path: str, sent: str, method: str = "GET") -> int:
            return client.request(
                method, path, headers=[(b"authorization", sent.encode("latin-1"))] if sent else []
            ).status_code

        for wrong in ("", "one", "Bearer", "Bearer two", "Bearer one1", "Basic one", "Bearer \xe9"):
            assert asked("/metrics", wrong) == 401, wrong
            assert asked("/terminate", wrong, "POST") == 401, wrong
            assert asked("/nowhere", wrong) == 401, wrong
        assert called == []
        for path in ("/livez", "/readyz"):
            assert client.get(path).json() == {"ok": True}
        bearer = {"Authorization": "Bearer one"}
        assert client.get("/readyz", headers=bearer).json()["checks"]["role"]["detail"].startswith("leading")
        assert asked("/terminate", "bearer one", "POST") == 200
        assert called == ["terminate"]

        file.write_text("two")
        assert (asked("/metrics", "Bearer one"), asked("/metrics", "Bearer two")) == (401, 200)
        file.unlink()
        assert asked("/metrics", "Bearer two") == 503
        assert client.get("/livez").json() == {"ok": True}
    server.stop()


def test_on_loopback_nothing_is_asked_unless_a_token_is_set(health: Health) -> None:
    server = OpsServer(health, access=HttpSettings(token="x")).start()
    assert httpx.get(f"{server.url}/metrics").status_code == 401
    server.stop()
