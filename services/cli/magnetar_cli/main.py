"""The ``magnetar`` command: what it consists of, and how it ends."""

import os
import sys
from typing import Annotated

import typer

from magnetar_agent.environments import EnvironmentUnavailable
from magnetar_cli.commands import (
    archive,
    context,
    demo,
    doctor,
    keys,
    log,
    model,
    placement,
    policy,
    repair,
    server,
    service,
    tenant,
    topics,
    up,
    upgrade,
)
from magnetar_cli.commands.apply import apply
from magnetar_cli.commands.replay import replay
from magnetar_cli.commands.run import Services
from magnetar_cli.contexts import CONTEXT
from magnetar_cli.exit_codes import MEANING, ExitCode, judge
from magnetar_cli.output import complain, line
from magnetar_common import __version__
from magnetar_common.errors import MagnetarError
from magnetar_common.ops import configure_logging

_DEBUG = "MAGNETAR_DEBUG"

app = typer.Typer(
    cls=Services,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Magnetar: an event-sourced control plane for model serving. The log is the state.",
    epilog=MEANING,
)
app.command()(up.up)
app.command()(demo.demo)
app.command()(apply)
for _command in (placement.plan, placement.explain):
    model.app.command()(_command)
app.add_typer(model.app, name="model")
app.add_typer(server.app, name="server")
app.add_typer(service.app, name="service")
app.add_typer(tenant.app, name="tenant")
app.add_typer(policy.app, name="policy")
for _command in (archive.archive, archive.verify, repair.void, repair.rebase):
    log.app.command()(_command)
app.add_typer(log.app, name="log")
app.command()(replay)
app.add_typer(topics.app, name="topics")
app.add_typer(upgrade.app, name="upgrade")
app.command()(doctor.doctor)
app.add_typer(context.app, name="context")
app.add_typer(keys.app, name="keys")


def _version(value: bool) -> None:
    if value:
        line(f"magnetar {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    chosen: Annotated[str, typer.Option("--context", envvar=CONTEXT, help="Which broker is meant.")] = "",
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say it, and end.")] = False,
) -> None:
    if chosen:
        os.environ[CONTEXT] = chosen


def main() -> int:
    """Run the command line; return the exit code (see :mod:`magnetar_cli.exit_codes`).

    An error that is foreseen is one line and a hint. ``MAGNETAR_DEBUG=1`` shows where it comes from.
    """
    configure_logging("magnetar", json=False, level="ERROR")  # on standard error; services set their own
    try:
        app(prog_name="magnetar")
    except (MagnetarError, EnvironmentUnavailable, TimeoutError) as error:
        if os.environ.get(_DEBUG):
            raise
        code, hint = judge(error)
        complain(str(error), hint)
        return code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.OK if end.code is None else ExitCode.FAILED
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
