"""Brokers for tests: one of each kind for the whole session, and fresh ones for tests that kill theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_common.brokers import BrokerUnavailable, RunningBroker, embedded
from magnetar_common.brokers.select import own_pulsar
from tests.plugin import NEEDS, absent


@pytest.fixture(scope="session")
def embedded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """The session's embedded broker. Use topics of your own; do not stop it."""
    with embedded.start(tmp_path_factory.mktemp("embedded")) as broker:
        yield broker


@pytest.fixture(scope="session")
def pulsar_broker(pytestconfig: pytest.Config) -> RunningBroker:
    """The session's real Pulsar. Use a namespace of your own; do not stop it. It marks the test `pulsar`."""
    broker = pytestconfig.stash[NEEDS].pulsar
    assert broker is not None, "a test that asks for the broker by `getfixturevalue` must carry the marker `pulsar`"
    return broker


@pytest.fixture
def own_embedded_broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """An embedded broker for this test alone, which it may kill and restart."""
    with embedded.start(tmp_path / "embedded") as broker:
        yield broker


@pytest.fixture
def own_pulsar_broker(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[RunningBroker]:
    """A real Pulsar for this test alone, which it may kill and restart: 3 to 6 s each. It marks the test `pulsar`."""
    try:
        broker = own_pulsar(tmp_path / "pulsar")
    except BrokerUnavailable as reason:
        absent(pytestconfig, "pulsar", str(reason))
        raise  # not reached: `absent` ends the test
    with broker:
        yield broker


# `bus_kind` ("memory", "embedded", "pulsar") and `bus` come here with `magnetar_common.bus`; the real one as
# `pytest.param("pulsar", marks=pytest.mark.pulsar)`, which needs `getfixturevalue("pulsar_broker")`.
