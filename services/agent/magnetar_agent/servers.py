"""From settings to an inference server and its adapter: started and supervised here, or running already."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from magnetar_agent.adapters.base import Adapter, Limits
from magnetar_agent.adapters.mlserver import RUNTIMES, MLServerAdapter, installed_runtimes
from magnetar_agent.adapters.process import ProcessAdapter, ProcessTemplate
from magnetar_agent.adapters.triton import BACKENDS, TritonAdapter, installed_backends
from magnetar_agent.environments import ensure
from magnetar_agent.launch import launch_mlserver, launch_triton
from magnetar_agent.server_process import ServerProcess
from magnetar_agent.settings import AgentSettings


def _shared(_: str) -> tuple[int, ...]:
    return ()


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
        pids_of: process ids that serve one model (by its name in the server) alone; none where models share them.
    """

    adapter: Adapter
    http_port: int
    grpc_port: int
    capabilities: tuple[str, ...]
    pids: Callable[[], tuple[int, ...]]
    stop: Callable[[], None]
    pids_of: Callable[[str], tuple[int, ...]] = _shared


def beside(settings: AgentSettings, gpus: tuple[str, ...], changed: Callable[[], None]) -> Beside:
    """Start the server and return once it answers, or attach to the one that runs, whether it answers or not.

    Args:
        settings: of the agent.
        gpus: uuids of this host's GPUs, in the order in which the server numbers them.
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
    if settings.url:
        return _attached(settings, gpus, limits)
    return _supervised(settings, gpus, limits, changed)


def _processes(settings: AgentSettings, limits: Limits) -> Beside:
    template = ProcessTemplate("process", shlex.split(settings.command), settings.capability_list())
    adapter = ProcessAdapter(template, settings.home / "processes", limits=limits, host=settings.advertised_host)
    return Beside(adapter, 0, 0, adapter.capabilities(), adapter.pids, adapter.close, adapter.pids_of)


def _attached(settings: AgentSettings, gpus: tuple[str, ...], limits: Limits) -> Beside:
    serves = settings.capability_list() or tuple(RUNTIMES if settings.kind == "mlserver" else BACKENDS)
    adapter = _repository(settings.kind, settings.url, Path(settings.repository), serves, gpus, limits)
    port = urlsplit(settings.url).port or 80
    return Beside(adapter, port, settings.grpc_port, adapter.capabilities(), tuple, adapter.close)


def _supervised(settings: AgentSettings, gpus: tuple[str, ...], limits: Limits, changed: Callable[[], None]) -> Beside:
    environment = ensure(settings.kind)
    folder = settings.home / settings.kind
    launch = launch_mlserver if settings.kind == "mlserver" else launch_triton
    serves = settings.capability_list() or (
        installed_runtimes(environment.python)
        if settings.kind == "mlserver"
        else installed_backends(environment.server.parent.parent / "backends")
    )
    process = ServerProcess(
        lambda: launch(environment, folder, host=settings.advertised_host),
        on_down=lambda _: changed(),
        on_restart=changed,
    )
    process.start()
    started = process.launch
    adapter = _repository(settings.kind, started.url, started.repository, serves, gpus, limits, process.tail)

    def stop() -> None:
        process.stop()
        adapter.close()

    def pids() -> tuple[int, ...]:
        pid = process.pid
        return () if pid is None else (pid,)

    return Beside(adapter, started.http_port, started.grpc_port, adapter.capabilities(), pids, stop)


def _repository(
    kind: str,
    url: str,
    repository: Path,
    serves: tuple[str, ...],
    gpus: tuple[str, ...],
    limits: Limits,
    diagnose: Callable[[], str] | None = None,
) -> Adapter:
    if kind == "mlserver":
        return MLServerAdapter(url, repository, runtimes=serves, limits=limits, diagnose=diagnose)
    return TritonAdapter(url, repository, backends=serves, gpus=gpus, limits=limits, diagnose=diagnose)
