"""What every message on the wire is made of: the pydantic base class, and the field types with limits.

Python attributes are snake_case; on the wire, in manifests and in JSON every field is camelCase.
"""

import re
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from magnetar_events.credentials import holds_credential, redacted

_NAME = r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"
_MEMORY = re.compile(r"^(\d+(?:\.\d+)?)\s*(|k|M|G|T|Ki|Mi|Gi|Ti)B?$")
_MEMORY_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_UNPRINTABLE = "control characters are not allowed"
_MAX_LONG = 2**53 - 1  # exact in JSON as well as in an Avro long


class Wire(BaseModel):
    """A record on the wire. Unknown fields are refused by name; instances are immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, protected_namespaces=()
    )


class Later:
    """Marks a field that came after logs had been recorded (in ``Annotated``, or as a dataclass field's metadata).

    While it holds its default it is left out of the state's digest, so that an old log keeps the one it was recorded with.
    """


def parse_memory(value: object) -> object:
    """Turn ``"100Mi"`` or ``"2G"`` (Kubernetes quantities) into bytes; leave anything that is not a string alone.

    Raises:
        ValueError: the text is not a quantity.
    """
    if not isinstance(value, str):
        return value
    match = _MEMORY.match(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not an amount of memory; write bytes, or for example 100Mi or 2G")
    return int(float(match[1]) * _MEMORY_UNITS[match[2]])


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError(_UNPRINTABLE)
    return value


@lru_cache(4096)  # most texts, such as a server's name, come with every message
def _open(value: str) -> str:
    """Let a printable text pass that may be kept: one function for both, as nearly every field of every input passes it."""
    if not value.isprintable():
        raise ValueError(_UNPRINTABLE)
    if holds_credential(value):
        raise PydanticCustomError("credential_in_text", "this looks like a credential, and the log keeps it for ever")
    return value


def _name(value: str) -> str:
    if ".." in value:
        raise ValueError("a name may not contain '..'")
    return value


Name = Annotated[str, Field(pattern=_NAME), AfterValidator(_name)]
"""A DNS-like name of 1 to 63 characters. It never holds ``_`` or ``/``, so that names can be joined with those."""

OptionalName = Annotated[str, Field(pattern=rf"{_NAME[:-1]}$|^$"), AfterValidator(_name)]
"""A name, or empty for "none"."""

Text = Annotated[str, Field(max_length=1024), AfterValidator(_open)]
"""A line of free text for people. One that holds a credential is refused."""

Told = Annotated[str, Field(max_length=1024), AfterValidator(_printable), AfterValidator(redacted)]
"""What some other software said, as a line for people. A credential in it is taken out: the news is worth more."""

Identifier = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_open)]
"""An opaque identifier."""

Count = Annotated[int, Field(ge=0, le=_MAX_LONG)]
"""A non-negative whole number that every language reads exactly."""

Memory = Annotated[int, BeforeValidator(parse_memory), Field(ge=0, le=_MAX_LONG)]
"""An amount of memory in bytes; a manifest may write ``100Mi``."""

Millis = Annotated[int, Field(ge=0, le=_MAX_LONG)]
"""A point in time (milliseconds since the epoch) or a duration in milliseconds."""

_Label = Annotated[str, Field(max_length=128), AfterValidator(_open)]

Labels = Annotated[dict[_Label, Text], Field(max_length=64)]
"""Free key-value pairs, of which the same holds as of other text."""
