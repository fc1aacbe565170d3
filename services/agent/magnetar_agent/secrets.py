"""Secrets are names in events; their values are found on this host only, and never leave it."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from magnetar_agent.adapters.base import Code, OperationError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")


class SecretError(OperationError):
    """A secret cannot be had on this host (SECRET_MISSING, final: somebody must put it there)."""


class Secret(Mapping[str, object]):
    """fsspec storage options that do not show themselves: `repr`, `str` and tracebacks with locals hold no value."""

    __slots__ = ("_options", "name")

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        self.name = name
        self._options = dict(options)

    def __getitem__(self, key: str) -> object:
        return self._options[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def __repr__(self) -> str:
        return f"Secret({self.name!r}, {len(self._options)} values)"


def resolve(name: str, folder: Path | None = None) -> Secret:
    """Find a secret on this host: `folder/NAME.json`, else the environment variable `MAGNETAR_SECRET_<NAME>`.

    Either holds a JSON object of fsspec storage options, e.g. `{"key": "…", "secret": "…"}`. In the variable's name
    letters are upper case, and anything but a letter or digit is `_`.

    Raises:
        SecretError: There is none, or it is not a JSON object. The message never quotes the content.
    """
    if not _NAME.fullmatch(name):
        raise SecretError(Code.SECRET_MISSING, f"secret name {name!r} must match {_NAME.pattern}")
    variable = "MAGNETAR_SECRET_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
    path = folder / f"{name}.json" if folder is not None else None
    if path is not None and path.is_file():
        place, text = str(path), path.read_text()
    elif variable in os.environ:
        place, text = variable, os.environ[variable]
    else:
        places = f"{path} or {variable}" if path is not None else variable
        raise SecretError(Code.SECRET_MISSING, f"secret {name!r} is not on this host; put it into {places}")
    try:
        options: object = json.loads(text)
    except ValueError:
        options = None  # the parser's message quotes the text, and so would a chained exception
    if not isinstance(options, dict):
        raise SecretError(Code.SECRET_MISSING, f"secret {name!r} in {place} is not a JSON object of storage options")
    return Secret(name, cast("dict[str, object]", options))
