"""``magnetar log``."""

from collections.abc import Callable, Iterator
from typing import Annotated, get_args

import typer

from magnetar_cli.connection import Following, following
from magnetar_cli.exit_codes import Misused, NotFound
from magnetar_cli.output import Columns, Format, Json, Output, line, show
from magnetar_common.log import LogRecord
from magnetar_common.render import canonical, fact_to_dict
from magnetar_events.facts import Fact, subject_of
from magnetar_projector.narrative import concerns, narrate
from magnetar_projector.places import parse_place, time_of, until

app = typer.Typer(help="The log: what became so, when, and why.")

KINDS = tuple(sorted(fact.__name__ for fact in get_args(Fact)))
"""Kinds of fact."""

_OF_A_SERVER = 2
"""Slashes in the key of a server."""

Subject = Annotated[
    str,
    typer.Option(
        "--subject",
        help="Only the story of this model (name or tenant/name), server (name, name/replica or cluster/name/replica) or "
        "tenant (tenant:name).",
    ),
]
Kind = Annotated[list[str] | None, typer.Option("--kind", help="Only facts of this kind; may be repeated.")]


@app.callback(invoke_without_command=True)
def log(
    ctx: typer.Context,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows, until Ctrl-C.")] = False,
    subject: Subject = "",
    kind: Kind = None,
    after: Annotated[str, typer.Option("--after", help="Begin behind this position, message id or time.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Show the log in plain words, a line for each fact. Followed, JSON is one object a line."""
    if ctx.invoked_subcommand is not None:
        return
    wanted = _kinds(kind or [])
    skipped: Callable[[LogRecord], bool] = until(parse_place(after)) if after else lambda _: False
    with following() as state:
        about = _meant(state, subject, ever=follow)
    with following() as state:
        rows = _rows(state, skipped, about, wanted, ever=follow)
        if not follow:
            show(list(rows), _LINES, output, nothing="nothing in the log matches")
            return
        for row in rows:
            line(_told(row) if output is Format.TABLE else canonical(row))


def row_of(record: LogRecord, fact: Fact) -> Json:
    """Return one fact of the log as a row."""
    return {
        "position": record.entry.position,
        "messageId": str(record.message_id),
        "time": time_of(record.entry.wall),
        "term": record.entry.term,
        "kind": type(fact).__name__,
        "subject": subject_of(fact),
        "text": narrate(fact),
        "fact": fact_to_dict(fact),
    }


_LINES: Columns = {
    "position": lambda row: row["position"],
    "time": lambda row: row["time"],
    "what": lambda row: row["text"],
}


def _meant(state: Following, name: str, *, ever: bool) -> str:
    if not name:
        return ""
    known: set[str] = set()
    for record in state.records():
        for fact in record.entry.facts:
            known.update(concerns(state.state, fact))
    found = subject_named(name, known, state.state.cluster)
    if not found and not ever:
        raise NotFound(f"{name} is nowhere in the log", "magnetar model list; magnetar server list")
    return found or (name if "/" in name or ":" in name else f"default/{name}")


def subject_named(name: str, known: set[str], cluster: str) -> str:
    """Return which subject of the log is meant; empty if none is.

    Args:
        name: whole, or a model of the default tenant, or a server as ``magnetar server show`` takes it.
        known: every subject of the log.
        cluster: whose log it is.

    Raises:
        Misused: there are several servers of that name.
    """
    for whole in (name, f"default/{name}", f"{cluster}/{name}" if "/" in name else ""):
        if whole in known:
            return whole
    servers = sorted(key for key in known if key.count("/") == _OF_A_SERVER and key.split("/")[1] == name)
    if len(servers) > 1:
        raise Misused(f"there are {len(servers)} servers {name}: {', '.join(servers[:10])}", "name one of them")
    return servers[0] if servers else ""


def _told(row: Json) -> str:
    return f"{row['position']:>6}  {row['time']}  {row['text']}"


def _rows(
    state: Following, skipped: Callable[[LogRecord], bool], subject: str, kinds: frozenset[str], *, ever: bool
) -> Iterator[Json]:
    for record in state.records(ever=ever):
        if skipped(record):
            continue
        for fact in record.entry.facts:
            if kinds and type(fact).__name__ not in kinds:
                continue
            if not subject or subject in concerns(state.state, fact):
                yield row_of(record, fact)


def _kinds(names: list[str]) -> frozenset[str]:
    known = {kind.lower(): kind for kind in KINDS}
    for name in names:
        if name.lower() not in known:
            raise Misused(f"{name!r} is no kind of fact", f"known are: {', '.join(KINDS)}")
    return frozenset(known[name.lower()] for name in names)
