"""``magnetar server …``."""

import typer

from magnetar_cli import shown
from magnetar_cli.connection import following
from magnetar_cli.output import Format, Output, show

app = typer.Typer(help="Inference servers with their agents, as the log knows them.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `list` a command of a group while it is the only one."""


@app.command("list")
def list_(*, output: Output = Format.TABLE) -> None:
    """Show every server: how it is, what it holds, how much memory is booked and free."""
    with following() as log:
        show(shown.servers(log.catch_up()), shown.SERVERS, output, nothing="no server has joined")
