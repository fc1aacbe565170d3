"""Finding a server by its name, and waiting for its drain to come to an end, with progress."""

import time

from magnetar_cli import shown
from magnetar_cli.connection import Following
from magnetar_cli.exit_codes import CommandError, Misused, NotFound, TimedOut
from magnetar_cli.output import STDERR, Format, note, put, table, write
from magnetar_common.drains import DRAINED, STUCK, phase, stuck_on
from magnetar_common.state import DRAINING, Server, State

_NAMED = 5
"""Models left behind that a line names."""


def key_of(state: State, name: str) -> str:
    """Return the key of a server: by ``cluster/name/replica``, ``name/replica``, or a name that only one bears.

    Raises:
        NotFound: there is none of that name.
        Misused: there are several.
    """
    known = sorted({*state.servers, *state.cordons})
    parts = name.count("/")
    if parts == 0:
        found = [key for key in known if key.split("/")[1] == name]
    else:
        found = [key for key in known if key == (name if parts > 1 else f"{state.cluster}/{name}")]
    if not found:
        raise NotFound(f"there is no server {name}", "magnetar server list")
    if len(found) > 1:
        raise Misused(f"there are {len(found)} servers {name}: {', '.join(found[:10])}", "name one of them")
    return found[0]


def server_of(state: State, key: str) -> Server:
    """Return a server.

    Raises:
        NotFound: it is forgotten; at most a cordon of its name is left.
    """
    server = state.servers.get(key)
    if server is None:
        raise NotFound(f"{key} is gone; what is left is the order for it", f"magnetar server resume {key}")
    return server


def wait_drained(log: Following, key: str, seconds: float, output: Format) -> None:
    """Wait until nothing is left on a server that drains, and show what is.

    Raises:
        TimedOut: its deadline is over, or the ``seconds`` are, and something is left.
        CommandError: somebody took the drain back.
    """
    began = time.monotonic()

    def over(state: State) -> bool:
        server = state.servers.get(key)
        if server is None:
            return True
        if server.cordon != DRAINING:
            raise CommandError(f"the drain of {key} was taken back", hint=f"magnetar log --subject {key}")
        return phase(server) in (DRAINED, STUCK)

    with STDERR.status(f"{key} drains") as spinner:

        def look(state: State) -> None:
            spinner.update(f"{_progress(state, key)} [dim]({time.monotonic() - began:.0f} s)[/dim]")

        log.wait(over, seconds, look)
    server = log.state.servers.get(key)
    if server is None or not server.replicas:
        note(f"{key} is drained: nothing is left on it")
        if output is not Format.TABLE and server is not None:
            write(shown.server_row(log.state, server), output)
        return
    row = shown.server_row(log.state, server)
    if output is Format.TABLE:
        put(table(row["replicas"], shown.HELD, "left"))
    else:
        write(row, output)
    raise TimedOut(f"{key} is not drained: {_progress(log.state, key)}", f"magnetar server show {key}")


def _progress(state: State, key: str) -> str:
    server = state.servers.get(key)
    if server is None:
        return f"{key} is gone"
    stuck = stuck_on(state, server)
    told = f"{len(server.replicas)} left on {key}"
    if stuck:
        told += f", {len(stuck)} of them stuck: "
        told += "; ".join(f"{left.model} v{left.generation}, {left.reason}" for left in stuck[:_NAMED])
    return told
