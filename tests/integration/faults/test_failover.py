"""Schedulers as processes on a real Pulsar: whatever happens to the one that leads, another goes on from the log."""

import os
import signal
from pathlib import Path

import pytest

from magnetar_common.bus import Bus
from magnetar_common.settings import BusSettings
from tests.support.leading import eventually
from tests.support.real_agent import RealAgent
from tests.support.schedulers import Schedulers, proven_log, publishers, serves, terms_commanded

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(240)]


def test_l4_a_standby_goes_on_when_the_leader_is_killed_or_stopped(
    many: Schedulers, bus: Bus, settings: BusSettings, tmp_path: Path
) -> None:
    """`kill -9`; then SIGSTOP for longer than the broker's keep-alive, and SIGCONT: the old leader ends by itself."""
    agent = RealAgent(bus, tmp_path, "a")
    first = many.start("one")
    many.leader()
    for name in ("two", "three"):
        many.start(name)
    serves(bus, "before", storage_uri=agent.artifact)
    eventually(lambda: all(each.stands_by for each in many.all[1:]), within=60)

    first.signal(signal.SIGKILL)
    second = many.leader(other_than=first)
    serves(bus, "killed", storage_uri=agent.artifact)
    assert agent.term == 2

    second.signal(signal.SIGSTOP)
    third = many.leader(other_than=second)
    serves(bus, "stopped", storage_uri=agent.artifact)
    assert agent.term == 3
    second.signal(signal.SIGCONT)
    assert second.exit_code() == os.EX_TEMPFAIL
    assert "Deposed" in second.said("stopping")[-1]["reason"]

    assert publishers(settings) == 1
    assert third.leads
    assert [loaded for what, loaded in agent.adapter.calls if what == "load"] == [
        "default_before_1",
        "default_killed_1",
        "default_stopped_1",
    ]
    assert terms_commanded(bus, "a") == sorted(terms_commanded(bus, "a"))
    proven_log(bus)
    assert agent.failures == []
    agent.die()
