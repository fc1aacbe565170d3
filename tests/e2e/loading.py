"""A model on a server with a repository, whichever kind it is: how it is, and a server that dies in the middle of a load."""

import os
import signal
import threading
from collections.abc import Callable

import pytest

from magnetar_agent.adapters.base import Adapter, Code, IndexState, LoadFailed, ModelSpec
from magnetar_agent.server_process import ServerProcess
from tests.support.leading import eventually


def state(adapter: Adapter, name: str) -> IndexState | None:
    entry = adapter.index().get(name)
    return entry.state if entry else None


def kill_during_a_load(server: ServerProcess, adapter: Adapter, spec: ModelSpec, began: Callable[[], bool]) -> None:
    """SIGKILL the server once it began to load: the load ends at once, with a code that may be retried."""
    failures: list[LoadFailed] = []

    def load() -> None:
        with pytest.raises(LoadFailed) as caught:
            adapter.load(spec)
        failures.append(caught.value)

    loading = threading.Thread(target=load)
    loading.start()
    eventually(began, what="the server began to load")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    loading.join(30)
    assert [(f.code, f.retriable) for f in failures] == [(Code.SERVER_UNREACHABLE, True)]
