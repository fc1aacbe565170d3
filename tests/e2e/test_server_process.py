"""Supervising a server process, with the tiny server standing for a heavy one."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from magnetar_agent.ports import free_port
from magnetar_agent.server_process import Launch, ServerProcess, ServerStartFailed
from tests.support.leading import eventually

# Answers like a V2 server that is live; its worker stays in the process group when it dies.
_SERVER = """
import http.server, subprocess, sys, pathlib
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("worker.pid").write_text(str(worker.pid))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def launch(folder: Path, source: str = _SERVER) -> Launch:
    folder.mkdir(exist_ok=True)
    port = free_port()
    return Launch(
        "v2", (sys.executable, "-c", source, str(port)), dict(os.environ), folder, folder, "127.0.0.1", port, 0
    )


def running(pid: int | None) -> bool:
    try:
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_killed_server_is_started_again_on_its_ports(tmp_path: Path) -> None:
    """Whoever wants its models back is told, after it answers; what its old life started is gone."""
    told: list[str] = []
    restarted = threading.Event()
    server = ServerProcess(lambda: launch(tmp_path), on_down=told.append, on_restart=restarted.set)
    server.start()
    first, url, worker = server.pid, server.launch.url, int((tmp_path / "worker.pid").read_text())
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert restarted.wait(30)
    assert (server.launch.url, server.restarts, len(told)) == (url, 1, 1)
    assert "-9" in told[0]
    assert server.pid not in {None, first}
    eventually(lambda: not running(worker), what="what its old life started is gone")
    server.stop()


def test_stop_leaves_no_process(tmp_path: Path) -> None:
    """Neither the server nor what it started, and no restart follows."""
    server = ServerProcess(lambda: launch(tmp_path))
    server.start()
    pid, worker = server.pid, int((tmp_path / "worker.pid").read_text())
    server.stop()
    server.stop()
    assert not running(pid)
    assert server.pid is None
    eventually(lambda: not running(worker), what="what it started is gone")


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """After three tries, with its last lines."""
    server = ServerProcess(lambda: launch(tmp_path, "raise SystemExit('no such option: --frobnicate')"))
    with pytest.raises(ServerStartFailed, match="frobnicate"):
        server.start()


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_killed_agent_leaves_no_server(tmp_path: Path) -> None:
    """`kill -9` of the agent ends its server, though the thread that asked for it is long gone."""
    agent = f"""
import sys, threading, time
from pathlib import Path
from tests.e2e.test_server_process import launch
from magnetar_agent.server_process import ServerProcess
server = ServerProcess(lambda: launch(Path({str(tmp_path)!r})))
thread = threading.Thread(target=server.start); thread.start(); thread.join()
print(server.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", agent],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert running(pid)
    parent.kill()
    parent.wait()
    eventually(lambda: not running(pid), what="the server of a killed agent ended")
    os.kill(int((tmp_path / "worker.pid").read_text()), signal.SIGKILL)
