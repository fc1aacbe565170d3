"""``magnetar demo``."""

import shutil
import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from magnetar_cli.output import note


def demo(
    *,
    data: Annotated[Path | None, typer.Option(help="Folder for everything; by default one that is removed.")] = None,
) -> None:
    """Take a model from DeployModel to inference, survive two failures, and tell the story from the log.

    Every step is checked; the first that does not hold ends it with exit code 1.
    """
    from magnetar_cli.demonstration import Demonstration  # heavy: not for every command

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: it stops what it started
    folder = data or Path(tempfile.mkdtemp(prefix="magnetar-demo-"))
    try:
        Demonstration(folder).run()
    except BaseException:
        note(f"logs and data are kept in {folder}")
        raise
    if data is None:
        shutil.rmtree(folder)
