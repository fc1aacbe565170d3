"""``magnetar model plan`` and ``magnetar model explain``: where replicas go, and why not elsewhere."""

from collections import Counter
from typing import Annotated

import typer

from magnetar_cli import manifests
from magnetar_cli.commands.apply import File
from magnetar_cli.commands.model import Named, key_of
from magnetar_cli.commands.replay import check_held
from magnetar_cli.connection import following
from magnetar_cli.exit_codes import Misused, NotFound
from magnetar_cli.output import Columns, Format, Json, Output, note, put, table, write
from magnetar_common.amounts import counted
from magnetar_common.log import LogRecord
from magnetar_common.render import plain
from magnetar_events import facts as f
from magnetar_events.requests import DeployModel
from magnetar_projector.places import parse_place, time_of, until
from magnetar_scheduler.placement.explain import Explanation, explain_entry, explain_now
from magnetar_scheduler.placement.scorers import SCORERS
from magnetar_scheduler.plan import plan as planned

ROWS = 20
"""Servers that a table shows; JSON and YAML have all."""


def plan(file: File, *, output: Output = Format.TABLE) -> None:
    """Show where each replica of a manifest's models would go, and why not elsewhere. Nothing is changed or sent."""
    wanted = manifests.read(file)
    rows: list[Json] = []
    with following() as log:
        state = log.catch_up()  # our own: what is planned is as if it had been granted, for the next of the file
        position = state.position
        for manifest in wanted:
            if not isinstance(manifest.request, DeployModel):
                raise Misused(f"{manifest.source}: is not a Model; only models are planned", "leave it out")
            rows.append(plain(planned(state, manifest.request)))
    if output is not Format.TABLE:
        write({"position": position, "plans": rows}, output)
        return
    note(f"as of position {position}; nothing was sent")
    for row in rows:
        _show_plan(row)


def explain(
    name: Named,
    *,
    at: Annotated[
        str,
        typer.Option(
            "--at", metavar="POSITION|TIME|MESSAGE_ID", help="The last placement up to and including this; else of all."
        ),
    ] = "",
    output: Output = Format.TABLE,
) -> None:
    """Show every server, and why a model was or was not placed there. What waits for room is judged as things stand."""
    key = key_of(name)
    place = parse_place(at) if at else None
    belongs = until(place) if place is not None else None
    decided: tuple[LogRecord, list[Explanation]] | None = None
    last: LogRecord | None = None
    with following() as log:
        for record in log.records():
            if belongs is not None and not belongs(record):
                break
            last = record
            if any(_places(fact, key) for fact in record.entry.facts):
                decided = record, explain_entry(log.state, record.entry.at, record.entry.facts, key)
        check_held(place, at, last)
        state = log.state
    now = explain_now(state, key) if decided is None or decided[0] is not last else []
    if now:
        position, wall, found = state.position, state.wall, now
    elif decided is not None:
        position, wall, found = decided[0].entry.position, decided[0].entry.wall, decided[1]
    else:
        raise NotFound(f"no placement of {key} is in the log{f' up to {at}' if at else ''}", "magnetar model list")
    placements: list[Json] = [plain(each) for each in found]
    if output is not Format.TABLE:
        write({"model": key, "position": position, "waiting": bool(now), "placements": placements}, output)
        return
    note(f"as of position {position}, {time_of(wall)}" if now else f"decided at position {position}, {time_of(wall)}")
    for placement in placements:
        _show(placement)


def _places(fact: f.Fact, key: str) -> bool:
    return isinstance(fact, (f.ReplicaPlaced, f.PlacementRefused)) and fact.model == key


def _show_plan(row: Json) -> None:
    placements: list[Json] = row["placements"]
    if row["code"]:
        put(f"{row['model']}: would be rejected: {row['code']}: {row['message']}", "")
    elif not placements:
        put(f"{row['model']}: version {row['generation']}: nothing more would be placed", "")
    else:
        for each in placements:
            _show(each)
    for each in row["leavers"]:
        put(f"{each['model']} version {each['generation']} leaves {each['server']}: {each['reason']}")


def _show(placement: Json) -> None:
    """Show one placement: its outcome, then the servers, the best first."""
    missing = counted(placement["missing"], "replica")
    where = placement["server"] or f"nowhere, {missing}: {placement['message']}"
    put(f"{placement['model']} version {placement['generation']} → {where}")
    if not placement["agrees"]:
        note("the log says otherwise: other software decided it, by other rules")
    servers: list[Json] = placement["servers"]
    if servers:
        put(table(servers[:ROWS], _SERVERS))
    left = Counter(each["rule"] or "fits" for each in servers[ROWS:])
    if left:
        told = ", ".join(f"{count} {rule}" for rule, count in sorted(left.items()))
        note(f"… and {left.total()} more ({told}): -o json shows all")
    put("")


def _verdict(row: Json) -> str:
    if row["rule"]:
        return row["rule"]
    return "chosen" if row["chosen"] else "fits"


def _why(row: Json) -> str:
    if row["rule"] or row["chosen"]:
        return row["said"]
    return "" if row["compared"] else "not compared: enough servers come before it, by load and name"


_SERVERS: Columns = {
    "server": lambda row: row["server"],
    "verdict": _verdict,
    **{each.name: lambda row, name=each.name: _number(row["scores"].get(name)) for each in SCORERS},
    "score (lowest wins)": lambda row: "-" if row["rule"] else _number(row["total"]),
    "why": _why,
}


def _number(score: float | None) -> str:
    return "-" if score is None else f"{score:g}" if isinstance(score, int) else f"{score:.3f}"
