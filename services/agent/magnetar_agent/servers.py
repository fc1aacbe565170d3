"""From settings to an inference server and its adapter: started and supervised here, or running already."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from magnetar_agent.adapters.base import Adapter, Limits
from magnetar_agent.adapters.mlserver import RUNTIMES, MLServerAdapter, installed_runtimes
from magnetar_agent.adapters.process import ProcessAdapter, ProcessTemplate
from magnetar_agent.adapters.triton import TritonAdapter, installed_backends
from magnetar_agent.environments import ensure
from magnetar_agent.launch import launch_mlserver, launch_triton
from magnetar_agent.server_process import ServerProcess
from magnetar_agent.settings import AgentSettings


@dataclass(slots=True)
class Beside:
    """The inference server beside this agent.

    Attributes:
        adapter: to talk to it.
        http_port: inference over HTTP; 0 = each model has its own.
        grpc_port: inference over gRPC; 0 = none.
        capabilities: what it can load.
        pids: process ids, as far as they are known.
        stop: ends what was started here.
    """

    adapter: Adapter
    http_port: int
    grpc_port: int
    capabilities: tuple[str, ...]
    pids: Callable[[], tuple[int, ...]]
    stop: Callable[[], None]


def beside(settings: AgentSettings, changed: Callable[[], None]) -> Beside:
    """Start the server, or attach to the one that runs; return once it answers.

    Args:
        settings: of the agent.
        changed: told when a supervised server ended or came back.

    Raises:
        EnvironmentUnavailable: its environment cannot be had here.
        ServerStartFailed: it did not come up.
    """
    limits = Limits(
        attempts=settings.load_attempts,
        elapsed_seconds=settings.load_elapsed_s,
        load_seconds=settings.load_timeout_s,
    )
    if settings.kind == "process":
        return _processes(settings, limits)
    return _attached(settings, limits) if settings.url else _supervised(settings, limits, changed)


def _processes(settings: AgentSettings, limits: Limits) -> Beside:
    template = ProcessTemplate("process", shlex.split(settings.command), settings.capability_list())
    adapter = ProcessAdapter(template, settings.home / "processes", limits=limits, host=settings.advertised_host)
    return Beside(adapter, 0, 0, adapter.capabilities(), adapter.pids, adapter.close)


def _attached(settings: AgentSettings, limits: Limits) -> Beside:
    repository, named = Path(settings.repository), settings.capability_list()
    adapter: Adapter
    if settings.kind == "mlserver":
        adapter = MLServerAdapter(settings.url, repository, runtimes=named or tuple(RUNTIMES), limits=limits)
    elif named:
        adapter = TritonAdapter(settings.url, repository, backends=named, limits=limits)
    else:
        adapter = TritonAdapter(settings.url, repository, limits=limits)
    port = urlsplit(settings.url).port or 80
    return Beside(adapter, port, settings.grpc_port, adapter.capabilities(), tuple, adapter.close)


def _supervised(settings: AgentSettings, limits: Limits, changed: Callable[[], None]) -> Beside:
    environment = ensure(settings.kind)
    folder = settings.home / settings.kind
    launch = launch_mlserver if settings.kind == "mlserver" else launch_triton
    process = ServerProcess(
        lambda: launch(environment, folder, host=settings.advertised_host),
        on_down=lambda _: changed(),
        on_restart=changed,
    )
    process.start()
    started, named = process.launch, settings.capability_list()
    adapter: Adapter
    if settings.kind == "mlserver":
        runtimes = named or installed_runtimes(environment.python)
        adapter = MLServerAdapter(
            started.url, started.repository, runtimes=runtimes, limits=limits, diagnose=process.tail
        )
    else:
        backends = named or installed_backends(environment.server.parent.parent / "backends")
        adapter = TritonAdapter(
            started.url, started.repository, backends=backends, limits=limits, diagnose=process.tail
        )

    def stop() -> None:
        adapter.close()
        process.stop()

    def pids() -> tuple[int, ...]:
        pid = process.pid
        return (pid,) if pid is not None else ()

    return Beside(adapter, started.http_port, started.grpc_port, adapter.capabilities(), pids, stop)
