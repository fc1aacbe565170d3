"""Golden logs: what was written once must fold to the same state for ever, and be decided the same by today's rules.

A file holds one entry a line (base64 of its Avro bytes, and the fingerprint of their schema), and last the digest of
the state that they fold to. ``python -m tests.golden NAME SERVICE_URL`` records the log of a running Magnetar.
"""

import base64
import json
from collections.abc import Iterable
from pathlib import Path

from magnetar_common.bus import connect
from magnetar_common.evolve import fold
from magnetar_common.log import LogRecord, replay
from magnetar_common.render import state_digest
from magnetar_common.settings import BusSettings
from magnetar_common.state import State
from magnetar_events import ENTRY
from magnetar_events.entry import FOLD_VERSION

FOLDER = Path(__file__).parent


def read(path: Path) -> tuple[list[tuple[bytes, str]], str]:
    """Return the entries' (bytes, fingerprint), and the digest that they fold to."""
    *entries, last = (json.loads(line) for line in path.read_text().splitlines())
    return [(base64.b64decode(line["entry"]), line["schema"]) for line in entries], last["digest"]


def write(name: str, entries: Iterable[tuple[bytes, str]]) -> None:
    """Record entries under a name; the fold version becomes part of it."""
    state, lines = State(), []
    for payload, schema in entries:
        fold(state, ENTRY.decode_trusted(payload, schema))
        lines.append(json.dumps({"entry": base64.b64encode(payload).decode(), "schema": schema}))
    lines.append(json.dumps({"digest": state_digest(state)}))
    (FOLDER / f"{name}.fold-{FOLD_VERSION}.jsonl").write_text("\n".join(lines) + "\n")


def record(name: str, url: str) -> None:
    """Record the log of a running Magnetar."""
    found: list[LogRecord] = []
    bus = connect(BusSettings(url=url))
    replay(bus, on_record=found.append)
    bus.close()
    write(name, [(each.payload, each.fingerprint) for each in found])
