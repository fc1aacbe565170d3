"""``magnetar doctor``."""

from collections.abc import Iterator
from typing import Annotated

import typer

from magnetar_cli import examination
from magnetar_cli.connection import administered, following
from magnetar_cli.contexts import bus_settings
from magnetar_cli.exit_codes import CommandError
from magnetar_cli.output import STDERR, Columns, Format, Output, show
from magnetar_common.render import plain

_FINDINGS: Columns = {
    "check": lambda row: row["check"],
    "result": lambda row: row["result"],
    "detail": lambda row: row["detail"],
    "what to do": lambda row: row["todo"],
}


def doctor(
    *,
    listen: Annotated[float, typer.Option(min=0, help="Seconds to listen to heartbeats, for the clocks.")] = 4.0,
    output: Output = Format.TABLE,
) -> None:
    """Examine the broker, its policies, the schemas, the log, who leads, how far it is behind, and all clocks.

    Fails if anything is bad; a warning is none.
    """
    with STDERR.status("examining"):
        findings = list(_examine(listen))
    show([plain(finding) for finding in findings], _FINDINGS, output)
    bad = [finding.check for finding in findings if finding.result == examination.BAD]
    if bad:
        raise CommandError(f"not well: {', '.join(bad)}")


def _examine(listen: float) -> Iterator[examination.Finding]:
    with administered() as admin:
        yield from examination.broker(bus_settings(), admin)
    yield from examination.schemas()
    with following() as log:
        yield from examination.log_health(log)
        yield from examination.leadership(log)
        yield from examination.lags(log)
        yield from examination.clocks(log.bus, listen)
