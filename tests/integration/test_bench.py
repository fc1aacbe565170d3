"""The bench runs: what it says is for a quiet machine, and no test's business."""

import pytest

from magnetar_common.brokers import RunningBroker
from tests.bench.__main__ import MEASURES
from tests.bench.measure import Setting


@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_runs(name: str, pulsar_broker: RunningBroker) -> None:
    """At the smallest size, each measure comes to its rows."""
    with Setting(quick=True, pulsar=pulsar_broker) as setting:
        rows = MEASURES[name].measure(setting)
    assert rows
    assert all(row.ratio >= 0 for row in rows)  # so small a size may take no measurable time
