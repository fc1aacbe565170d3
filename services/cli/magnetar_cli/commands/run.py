"""One command to run each service alone: ``magnetar scheduler|registry|projector|agent``.

Their options are made from their settings, and only when asked for: importing four services takes a second.
"""

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

import typer
from pydantic_settings import BaseSettings
from typer.core import TyperGroup

from magnetar_cli import contexts, options
from magnetar_common.settings import BusSettings, SnapshotSettings

_BUS = "pulsar_"
_SNAPSHOTS = "snapshots_"


@dataclass(frozen=True, slots=True)
class Service:
    """Where a service is.

    Attributes:
        module: its composition root, with ``run(settings) -> int``.
        settings: module of its settings class.
        cls: name of that class.
        summary: what it does.
        snapshots: whether it has to do with snapshots.
    """

    module: str
    settings: str
    cls: str
    summary: str
    snapshots: bool = False


SERVICES = {
    "scheduler": Service(
        "magnetar_scheduler.main",
        "magnetar_scheduler.main",
        "SchedulerSettings",
        "Run a scheduler: it leads, or stands by. Exit code 75: it was deposed; start it again.",
        snapshots=True,
    ),
    "registry": Service(
        "magnetar_registry.main",
        "magnetar_registry.main",
        "RegistrySettings",
        "Run the registry service: retires zombies, and answers look-ups over HTTP.",
    ),
    "projector": Service(
        "magnetar_projector.main",
        "magnetar_projector.main",
        "ProjectorSettings",
        "Run a projector: follows the log into a read model, and answers over HTTP.",
        snapshots=True,
    ),
    "agent": Service(
        "magnetar_agent.main",
        "magnetar_agent.settings",
        "AgentSettings",
        "Run an agent beside one inference server: its own, or one that runs already.",
    ),
}
"""The services by the name of their command."""


class Services(TyperGroup):
    """The root's commands, and one for each service."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*super().list_commands(ctx), *SERVICES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None."""
        service = SERVICES.get(cmd_name)
        return command_of(cmd_name, service) if service is not None else super().get_command(ctx, cmd_name)


def command_of(name: str, service: Service) -> Any:
    """Return the command that runs a service, with all its settings as options."""
    cls: type[BaseSettings] = getattr(importlib.import_module(service.settings), service.cls)

    def run(**values: Any) -> None:
        bus = contexts.bus_settings().model_dump()
        given = {field: value for field in bus if (value := values.get(f"{_BUS}{field}")) is not None}
        contexts.export(BusSettings(**{**bus, **given}))
        if service.snapshots:
            contexts.export(options.settings_of(SnapshotSettings, values, prefix=_SNAPSHOTS))
        settings = options.settings_of(cls, values)
        raise typer.Exit(importlib.import_module(service.module).run(settings))

    run.__doc__ = f"{service.summary}\n\nThe flags --pulsar-… are MAGNETAR_PULSAR_… in the environment."
    run.__name__ = name
    taken: list[inspect.Parameter] = [
        *options.parameters(cls),
        *options.parameters(BusSettings, prefix=_BUS, environment=False),
        *(options.parameters(SnapshotSettings, prefix=_SNAPSHOTS) if service.snapshots else ()),
    ]
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name)(options.command(run, taken))
    return typer.main.get_command(app)
