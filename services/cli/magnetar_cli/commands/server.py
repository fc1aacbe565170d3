"""``magnetar server …``."""

from collections.abc import Callable
from typing import Annotated

import typer

from magnetar_cli import shown
from magnetar_cli.asking import Reason, Seconds, ask
from magnetar_cli.connection import following
from magnetar_cli.draining import key_of, server_of, wait_drained
from magnetar_cli.output import Format, Json, Output, note, put, show, table, write
from magnetar_common.actors import who
from magnetar_common.client import Handle, Magnetar
from magnetar_events.facts import RequestAccepted
from magnetar_events.requests import DRAIN_MS, LONGEST_DRAIN_MS, CordonServer, DrainServer
from magnetar_projector.places import time_of

app = typer.Typer(
    help="Inference servers with their agents, as the log knows them: see them, cordon and drain them.",
    no_args_is_help=True,
)

Named = Annotated[str, typer.Argument(metavar="NAME", help="name, name/replica, or cluster/name/replica")]

_ORDERS = frozenset(kind.__name__ for kind in (CordonServer, DrainServer))
"""Requests that a server's order comes from."""

_AFTER_S = 10.0
"""What is said at a drain's deadline is heard within this time (seconds)."""


@app.command("list")
def list_(*, output: Output = Format.TABLE) -> None:
    """Show every server: how it is, what it holds, how much memory is booked and free."""
    with following() as log:
        show(shown.servers(log.catch_up()), shown.SERVERS, output, nothing="no server has joined")


@app.command("show")
def show_(name: Named, *, output: Output = Format.TABLE) -> None:
    """Show one server with what is on it; of one that drains, why each model is still there."""
    with following() as log:
        orders = {
            (record.entry.position, fact.subject): (record.entry.wall, fact)
            for record in log.records()
            for fact in record.entry.facts
            if isinstance(fact, RequestAccepted) and fact.kind in _ORDERS
        }
        row = shown.server_row(log.state, server_of(log.state, key_of(log.state, name)))
    order = row["order"]
    asked = orders.get((order["position"], row["key"])) if order else None
    if asked:
        wall, request = asked
        by = who(request.actor, request.authtype, request.authverified, request.publisher)
        row["order"] = {**order, "who": by, "time": time_of(wall)}
    if output is not Format.TABLE:
        write(row, output)
        return
    put(table([row], shown.SERVERS))
    if row["order"]:
        put("", _told(row["order"]))
    if row["replicas"]:
        put("", table(row["replicas"], shown.HELD if row["modelsLeft"] else shown.ON, "models"))


def _told(order: Json) -> str:
    by = f" by {order['who']}, {order['time']}" if "who" in order else ""
    what = "drained" if order["drain"] else "cordoned"
    return f"{what}{by}, at position {order['position']}: {order['reason'] or 'no reason was given'}"


@app.command()
def drain(
    name: Named,
    *,
    deadline: Annotated[
        float,
        typer.Option(
            "--deadline",
            min=1,
            max=LONGEST_DRAIN_MS / 1000,
            help="Seconds after which it is said what could not be moved; that goes on serving.",
        ),
    ] = DRAIN_MS / 1000,
    reason: Reason = "",
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until nothing is left, or the deadline.")] = False,
    timeout: Seconds = 0.0,
    output: Output = Format.TABLE,
) -> None:
    """Place nothing more on a server, and move what is there: Available elsewhere before it leaves.

    With --wait: exit code 0 once nothing is left, 4 if something is at the deadline (it may still leave later), 1 if the
    drain was called off. --timeout is by default the deadline.
    """
    key = _order(name, lambda magnetar, key: magnetar.drain_server(key, deadline_s=deadline, reason=reason))
    note(f"{key} drains; take that back with: magnetar server resume {key}")
    with following() as log:
        if wait:
            wait_drained(log, key, timeout or deadline + _AFTER_S, output)
        elif output is not Format.TABLE:
            state = log.catch_up()
            write(shown.server_row(state, server_of(state, key)), output)


@app.command()
def cordon(name: Named, *, reason: Reason = "") -> None:
    """Place nothing more on a server; what is there stays, and if it drains, what is left stays, too."""
    key = _order(name, lambda magnetar, key: magnetar.cordon_server(key, reason=reason))
    note(f"{key} is cordoned; take that back with: magnetar server resume {key}")


@app.command()
def resume(name: Named, *, reason: Reason = "") -> None:
    """Place on a server again, be it cordoned or drained."""
    key = _order(name, lambda magnetar, key: magnetar.resume_server(key, reason=reason))
    note(f"{key} can be placed on again")


def _order(name: str, order: Callable[[Magnetar, str], Handle]) -> str:
    with following() as log:
        key = key_of(log.catch_up(), name)
    ask(key, lambda magnetar: order(magnetar, key))
    return key
