"""``magnetar replay``."""

from datetime import datetime
from typing import Annotated

import typer

from magnetar_cli import shown
from magnetar_cli.commands.archive import opened
from magnetar_cli.connection import connected
from magnetar_cli.exit_codes import Misused, NotFound
from magnetar_cli.output import STDERR, Format, Output, note, put, table, write
from magnetar_common.archive import entries_of
from magnetar_common.bus import EARLIEST, Bus, MessageId
from magnetar_common.evolve import fold
from magnetar_common.log import LogRecord
from magnetar_common.log import replay as replayed
from magnetar_common.render import state_digest, state_to_dict
from magnetar_common.state import State
from magnetar_projector.places import Place, parse_place, time_of, until


def replay(
    *,
    at: Annotated[
        str, typer.Option("--at", metavar="POSITION|TIME|MESSAGE_ID", help="Up to and including this; by default, all.")
    ] = "",
    archive: Annotated[
        str, typer.Option("--archive", metavar="URL|DIR", help="Read `magnetar log archive`'s files, and no broker.")
    ] = "",
    output: Output = Format.TABLE,
) -> None:
    """Rebuild the whole state from the log alone, as it was at a moment."""
    if archive:
        state = state_of_archive(archive, at)
    else:
        with connected() as bus:
            state = state_at(bus, at)
    if output is not Format.TABLE:
        write({"position": state.position, "digest": state_digest(state), "state": state_to_dict(state)}, output)
        return
    note(f"position {state.position}, {time_of(state.wall)}, term {state.term}, led by {state.leader or 'nobody'}")
    tables = (
        (shown.models(state), shown.MODELS, "models"),
        (shown.replicas(state), shown.REPLICAS, "replicas"),
        (shown.servers(state), shown.SERVERS, "servers"),
    )
    for rows, columns, title in tables:
        if rows:
            put(table(rows, columns, title), "")


def state_at(bus: Bus, at: str) -> State:
    """Return the state at a place as people name it; empty = the end.

    Raises:
        BadPlace: it is none.
        NotFound: the log does not hold it.
    """
    place = parse_place(at) if at else None
    last: list[LogRecord] = []

    def remember(record: LogRecord) -> None:
        last[:] = [record]

    with STDERR.status("replaying the log"):
        state = replayed(bus, until(place) if place is not None else None, remember)
    check_held(place, at, last[0] if last else None)
    return state


def check_held(place: Place | None, at: str, last: LogRecord | None) -> None:
    """Make sure that the log reaches to a place.

    Args:
        place: None = its end.
        at: as it was named, for the error.
        last: entry that was read up to there; None = none was.

    Raises:
        NotFound: it does not.
    """
    if last is None:
        raise NotFound("the log is empty" if place is None else f"the log begins after {at}")
    beyond = last.entry.position < place if isinstance(place, int) else False
    if place is not None and not isinstance(place, (int, datetime)):
        beyond = last.message_id < place
    if beyond:
        raise NotFound(f"the log does not hold {at}; it ends at position {last.entry.position} ({last.message_id})")


def state_of_archive(url: str, at: str) -> State:
    """Return the state at a place as people name it, from archived files alone; empty = their end.

    Raises:
        Misused: it is a message id: files have none.
        BadPlace: it is none.
        NotFound: they do not hold it.
        ArchiveBroken: they cannot be trusted.
    """
    place = parse_place(at) if at else None
    if isinstance(place, MessageId):
        raise Misused(
            "an archive knows positions and times, no message ids", "magnetar replay --archive DIR --at POSITION"
        )
    belongs = until(place) if place is not None else None
    state, empty = State(), True
    with STDERR.status("replaying the archive"):
        for entry in entries_of(opened(url)):
            empty = False
            if belongs is not None and not belongs(LogRecord(entry, EARLIEST, b"", "")):
                break
            fold(state, entry)
    if state.position < 0:
        raise NotFound(f"there is no archive in {url}" if empty else f"the archive begins after {at}")
    if isinstance(place, int) and state.position < place:
        raise NotFound(f"the archive does not hold {at}; it ends at position {state.position}")
    return state
