"""A Magnetar of the test's own on the shared broker, and schedulers for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_common.brokers import RunningBroker
from magnetar_common.settings import BusSettings
from tests.support.brokers import settings_for
from tests.support.schedulers import Schedulers, schedulers


@pytest.fixture
def settings(pulsar_broker: RunningBroker) -> BusSettings:
    return settings_for(pulsar_broker)


@pytest.fixture
def many(tmp_path: Path, settings: BusSettings) -> Iterator[Schedulers]:
    with schedulers(tmp_path, settings) as made:
        yield made
