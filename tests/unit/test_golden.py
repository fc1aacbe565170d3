"""Golden logs, replayed against today's code."""

from pathlib import Path

import pytest

from magnetar_common.evolve import fold
from magnetar_common.render import state_digest
from magnetar_common.state import State
from magnetar_events import ENTRY
from magnetar_scheduler.decide import decide
from magnetar_scheduler.inputs import understand
from tests import golden

LOGS = sorted(golden.FOLDER.glob("*.jsonl"))


def test_there_are_golden_logs() -> None:
    """An empty folder would make the tests below pass without testing."""
    assert LOGS


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_folds_to_the_same_state(path: Path) -> None:
    """What a log meant when it was written, it means today."""
    entries, digest = golden.read(path)
    state = State()
    for payload, schema in entries:
        assert fold(state, ENTRY.decode_trusted(payload, schema))
    assert state_digest(state) == digest
    assert state.illegal == 0


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_l17_is_decided_the_same(path: Path) -> None:
    """The log alone can be run through ``decide``: today's rules come to the same facts, or the change is a wanted one."""
    entries, _ = golden.read(path)
    state, decided = State(), 0
    for payload, schema in entries:
        entry = ENTRY.decode_trusted(payload, schema)
        if entry.input.kind != "leader" and (entry.input.data is not None or not entry.input.sha256):
            assert tuple(decide(state, understand(entry.input), entry.at)) == entry.facts, f"position {entry.position}"
            decided += 1
        fold(state, entry)
    assert decided > len(entries) // 2
