"""``magnetar apply``."""

from pathlib import Path
from typing import Annotated

import typer

from magnetar_cli import manifests
from magnetar_cli.asking import Reason, Seconds, Wait, send
from magnetar_cli.connection import connected
from magnetar_cli.output import Format, Output

File = Annotated[Path, typer.Option("--file", "-f", help="A manifest (YAML or JSON), or a folder of them.")]


def apply(
    file: File, *, reason: Reason = "", wait: Wait = "", timeout: Seconds = 120.0, output: Output = Format.TABLE
) -> None:
    """Want what the manifests say. All are checked before the first is sent; what is wanted already changes nothing."""
    wanted = manifests.read(file)
    with connected() as bus:
        send(bus, wanted, output, reason=reason, wait=wait, seconds=timeout)
