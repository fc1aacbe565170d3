"""``magnetar upgrade …``."""

from functools import partial

import typer

from magnetar_cli.asking import Reason, answered, asking
from magnetar_cli.connection import Following, connected
from magnetar_cli.exit_codes import CommandError
from magnetar_cli.output import Columns, Format, Json, Output, note, show, write
from magnetar_common.bus import Bus
from magnetar_common.discovery import Discovery
from magnetar_common.errors import BusUnavailable
from magnetar_events.entry import FOLD_VERSION, FOLD_VERSION_PROPERTY

app = typer.Typer(help="The log's fold version: which software can read it.", no_args_is_help=True)

_SCHEDULER = "magnetar-scheduler"
_PATIENCE_S = 10.0

_SCHEDULERS: Columns = {
    "scheduler": lambda row: row["instance"],
    "role": lambda row: row["role"],
    "software": lambda row: row["version"],
    "fold version": lambda row: row["foldVersion"],
}


@app.command()
def status(*, output: Output = Format.TABLE) -> None:
    """Show the log's fold version, this software's, and that of every scheduler that is registered."""
    with connected() as bus:
        in_force, rows = _in_force(bus), _schedulers(bus)
    if output is not Format.TABLE:
        write({"log": in_force, "software": FOLD_VERSION, "schedulers": rows}, output)
        return
    show(rows, _SCHEDULERS, output, nothing="no scheduler is registered")
    after = "" if in_force >= FOLD_VERSION else "; once nothing older runs: magnetar upgrade finalize"
    note(f"the log is of fold version {in_force}, this software of {FOLD_VERSION}{after}")


@app.command()
def finalize(*, reason: Reason = "", output: Output = Format.TABLE) -> None:
    """Let the log hold what only this software's fold version knows. There is no way back to older software.

    Refused while a registered scheduler is older. Projectors do not register: an older one halts, and says so.
    """
    with connected() as bus:
        older = [row for row in _schedulers(bus) if row["foldVersion"] < FOLD_VERSION]
        if older:
            named = ", ".join(f"{row['instance']} (fold version {row['foldVersion']})" for row in older)
            raise CommandError(f"older schedulers run: {named}", hint="upgrade or stop them; magnetar upgrade status")
        before = _in_force(bus)
        with asking(bus) as magnetar:
            answered("upgrade", partial(magnetar.finalize_upgrade, FOLD_VERSION, reason=reason))
    if output is not Format.TABLE:
        write({"before": before, "foldVersion": FOLD_VERSION}, output)
    elif before == FOLD_VERSION:
        note(f"the log is of fold version {FOLD_VERSION} already")
    else:
        note(f"the log is of fold version {FOLD_VERSION} from here on; it was of {before}")


def _in_force(bus: Bus) -> int:
    log = Following(bus)
    try:
        return log.catch_up().version
    finally:
        log.close()


def _schedulers(bus: Bus) -> list[Json]:
    """Return every scheduler that is there, whatever its status; one that does not say its fold version is of the first."""
    with Discovery(bus) as discovery:
        if not discovery.wait_ready(_PATIENCE_S):
            raise BusUnavailable(f"the registry was not read within {_PATIENCE_S:g} s")
        found = discovery.instances(_SCHEDULER, None)
    return [
        {
            "instance": record.instance_id,
            "role": record.metadata.get("role", ""),
            "version": record.metadata.get("version", ""),
            "foldVersion": _number(record.metadata.get(FOLD_VERSION_PROPERTY, "1")),
        }
        for record in found
        if record.status != "DOWN"
    ]


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < len(str(2**31)) else 1
