"""``magnetar log archive`` and ``magnetar log verify``."""

from typing import Annotated

import typer

from magnetar_cli.connection import connected
from magnetar_cli.exit_codes import Misused, NotFound
from magnetar_cli.output import Columns, Format, Json, Output, note, show, write
from magnetar_common.archive import ENTRIES, MEBIBYTES, Archive
from magnetar_common.archive import archive as archived
from magnetar_common.archive import verify as verified
from magnetar_common.render import plain

_FILES: Columns = {
    "file": lambda row: row["path"],
    "positions": lambda row: f"{row['first']} to {row['last']}",
    "sha256": lambda row: row["sha256"],
}


def archive(
    *,
    to: Annotated[str, typer.Option("--to", metavar="URL|DIR", help="A folder: a path, s3://…, gs://…")],
    start: Annotated[
        int | None, typer.Option("--from", min=0, metavar="POSITION", help="Where a new archive begins. [default: 0]")
    ] = None,
    entries: Annotated[int, typer.Option(min=1, help="Entries in one file, at most.")] = ENTRIES,
    mebibytes: Annotated[int, typer.Option(min=1, help="A file is closed at this size.")] = MEBIBYTES,
    output: Output = Format.TABLE,
) -> None:
    """Write the log to hash-chained Avro files. A second run goes on where the first ended."""
    rows: list[Json] = []
    try:
        with connected() as bus:
            for link in archived(bus, opened(to), start, entries=entries, mebibytes=mebibytes):
                rows.append(plain(link))  # noqa: PERF401 - what was written is told even if the broker goes away
    except BaseException:
        if rows:
            show(rows, _FILES, output)
        raise
    show(rows, _FILES, output, nothing="the archive has all that the log has")


def verify(
    folder: Annotated[str, typer.Argument(metavar="URL|DIR", help="As it was given to --to.")],
    *,
    output: Output = Format.TABLE,
) -> None:
    """Check an archive: every file, the chain, and what it folds to. No broker is needed."""
    found = verified(opened(folder))
    if not found.files:
        raise NotFound(f"there is no archive in {folder}", f"magnetar log archive --to {folder}")
    if output is not Format.TABLE:
        write(plain(found), output)
        return
    note(f"files: {found.files}, with positions {found.first} to {found.last}; the last one's sha256 is {found.sha256}")
    note(f"they fold to the state {found.digest}" if found.digest else "they do not begin at 0: no state follows")


def opened(url: str) -> Archive:
    """Return the archive at a path or a URL.

    Raises:
        Misused: nothing that is installed knows this kind of URL.
    """
    try:
        return Archive(url)
    except (ValueError, ImportError) as error:
        raise Misused(f"{url}: {error}") from error
