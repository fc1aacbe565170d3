"""What a command says: results on standard output, as a table or as data; progress and everything else on the other."""

import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from magnetar_events.credentials import redacted

Json = dict[str, Any]
Columns = Mapping[str, Callable[[Json], object]]
"""Title → what to show of a row."""

_WIDE = 500  # characters: a table in a pipe or a file is not cut off

STDERR = Console(stderr=True, highlight=False)
"""Progress, notes and errors."""


class Format(StrEnum):
    """How to write a result."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[Format, typer.Option("--output", "-o", help="How to write the result.")]
"""The option ``-o`` of every command that shows something."""


def put(*what: RenderableType) -> None:
    """Write for people on standard output; into a pipe or a file as wide as need be, and without trailing spaces."""
    if sys.stdout.isatty():
        Console(highlight=False).print(*what, sep="\n")
        return
    console = Console(highlight=False, width=_WIDE, file=io.StringIO())
    console.print(*what, sep="\n")
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    sys.stdout.write("".join(f"{text.rstrip()}\n" for text in lines))
    sys.stdout.flush()


def show(rows: Sequence[Json], columns: Columns, form: Format, *, nothing: str = "") -> None:
    """Write rows.

    Args:
        rows: each whole, as JSON and YAML show it.
        columns: what the table shows of each.
        form: how.
        nothing: said on standard error in place of an empty table.
    """
    if form is not Format.TABLE:
        write(list(rows), form)
    elif rows:
        put(table(rows, columns))
    elif nothing:
        note(nothing)


def table(rows: Sequence[Json], columns: Columns, title: str | None = None) -> Table:
    """Return rows as a table for people."""
    made = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="bold")
    for number, name in enumerate(columns):
        last = number == len(columns) - 1
        made.add_column(name.upper(), no_wrap=not last, overflow="fold")
    for row in rows:
        made.add_row(*(Text(str(value(row))) for value in columns.values()))
    return made


def write(value: Any, form: Format) -> None:
    """Write one value as JSON or YAML."""
    if form is Format.YAML:
        sys.stdout.write(to_yaml(value))
    else:
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def to_yaml(value: Any) -> str:
    """Return a value as YAML, its fields in their own order."""
    plain = json.loads(json.dumps(value))  # enums are their text
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)  # pyright: ignore[reportUnknownMemberType]


def line(text: str) -> None:
    """Write one line of a result at once: whoever follows reads it now."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Say something that is no result."""
    STDERR.print(Text(text), soft_wrap=True)


def complain(message: str, hint: str = "") -> None:
    """Say in one line what went wrong, and in a second what to do."""
    STDERR.print(Text.assemble(("error: ", "bold red"), " ".join(redacted(message).split())), soft_wrap=True)
    if hint:
        STDERR.print(Text.assemble(("hint: ", "bold"), hint), soft_wrap=True)
