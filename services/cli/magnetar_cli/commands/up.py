"""``magnetar up``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from magnetar_agent.environments import EnvironmentUnavailable
from magnetar_cli import contexts, shown
from magnetar_cli.connection import Following
from magnetar_cli.exit_codes import Misused
from magnetar_cli.output import STDERR, Columns, Json, note, table
from magnetar_cli.plan import BrokerChoice, Plan, ServerKind
from magnetar_common.bus import connect
from magnetar_common.errors import BusUnavailable, MagnetarError
from magnetar_common.lifecycle import Lifecycle

if TYPE_CHECKING:
    from magnetar_cli.stack import Stack

CONTEXT_NAME = "up"
"""The context that commands use to reach it."""

_LOOK_S = 1.0

Agents = Annotated[int, typer.Option(min=0, max=64, help="How many agents, each with an inference server of its own.")]
Kind = Annotated[ServerKind, typer.Option(help="Kind of inference server.")]
Broker = Annotated[
    BrokerChoice | None,
    typer.Option(help="pulsar-lite (no Java; default where it runs), or a real Pulsar on a JVM."),
]
Data = Annotated[Path, typer.Option(help="Folder for everything; what is in it already is gone on with.")]


def up(
    *,
    agents: Agents = 3,
    kind: Kind = "mlserver",
    broker: Broker = None,
    data: Data = Path(".magnetar/up"),
    process_command: Annotated[str, typer.Option(help="For --kind process: what starts one model's server.")] = "",
) -> None:
    """Start everything on this machine, and keep it running until Ctrl-C."""
    if kind == "process" and not process_command:
        raise Misused("--process-command is missing: what starts one model's server", "magnetar agent --help")
    from magnetar_cli.stack import Stack  # heavy: not for every command

    stack = Stack(Plan(data, agents, kind, broker, process_command), note)
    failure: Exception | None = None
    with Lifecycle() as life:
        life.on_stop("stack", stack.stop)
        try:
            stack.start(life.stopping)
        except (MagnetarError, EnvironmentUnavailable) as error:
            failure = error  # told once everything is stopped
        else:
            if not life.stopping.is_set():
                _serve(stack, life)
        note("stopping everything")
    if failure is not None:
        raise failure
    raise typer.Exit(life.exit_code)


def _serve(stack: "Stack", life: Lifecycle) -> None:
    """Make it the broker that is meant, and show how it is, until it is to end."""
    before = contexts.load().current
    contexts.put(CONTEXT_NAME, stack.context, use=True)
    life.on_stop("context", lambda: _leave("" if before == CONTEXT_NAME else before))
    note(f"commands reach it through the context {CONTEXT_NAME!r}, in use now: magnetar model list")
    note(f"logs are in {stack.logs}; Ctrl-C stops everything")
    _watch(stack, life)


def _leave(before: str) -> None:
    """Use the context again that was in use before, unless somebody chose another meanwhile."""
    known = contexts.load()
    if known.current == CONTEXT_NAME:
        contexts.save(known.model_copy(update={"current": before if before in known.contexts else ""}))


def _watch(stack: "Stack", life: Lifecycle) -> None:
    """Show how everything is, until it is to end. Where nobody looks, say only what changes."""
    bus = connect(stack.bus_settings)
    log = Following(bus)
    restarts = dict.fromkeys(stack.everything, 0)
    try:
        with Live(console=STDERR, refresh_per_second=4, transient=True) as live:
            while not life.wait(_LOOK_S):
                if stack.keep_broker():
                    live.console.print("the broker died and was started again")
                for name, part in stack.everything.items():
                    if part.restarts > restarts[name]:
                        restarts[name] = part.restarts
                        live.console.print(f"{name} ended with {part.last_exit} and was started again; see {part.log}")
                if STDERR.is_terminal:
                    live.update(_picture(stack, log))
    finally:
        log.close()
        bus.close()


_PARTS: Columns = {
    "service": lambda row: row["service"],
    "pid": lambda row: row["pid"],
    "url": lambda row: row["url"],
    "restarts": lambda row: row["restarts"],
}


def _picture(stack: "Stack", log: Following) -> Group:
    try:
        state, away = log.catch_up(), ""
    except BusUnavailable as error:
        state, away = log.state, f"; {error}"
    parts: list[Json] = [
        {"service": name, "pid": part.pid or "-", "url": part.url, "restarts": part.restarts}
        for name, part in stack.everything.items()
    ]
    shows = [table(parts, _PARTS), Text()]
    shows += [table(shown.servers(state), shown.SERVERS), Text()] if state.servers else []
    shows += [table(shown.models(state), shown.MODELS)] if state.models else [Text("no models; magnetar apply -f FILE")]
    return Group(*shows, Text(f"position {state.position}, term {state.term}{away}", style="dim"))
