"""A leader that the broker lets go of: cut off from it, or by an unload of the log's topic."""

import os
from pathlib import Path

import pytest

from magnetar_common.admin import Admin
from magnetar_common.bus import Bus
from magnetar_common.settings import BusSettings
from magnetar_common.topics import STATE_CHANGES, under
from tests.support.leading import eventually
from tests.support.proxy import Proxy
from tests.support.real_agent import RealAgent
from tests.support.schedulers import Schedulers, proven_log, publishers, serves, terms_commanded

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(240)]


def test_a_leader_that_is_cut_off_is_replaced_and_ends_by_itself(
    many: Schedulers, bus: Bus, settings: BusSettings, tmp_path: Path
) -> None:
    """Nothing gets through, no connection breaks: idle as it is, it finds out, and never writes or commands again."""
    agent = RealAgent(bus, tmp_path, "a")
    with Proxy(settings.url) as way:
        old = many.start("one", url=way.url)
        many.leader()
        standby = many.start("two")
        eventually(lambda: standby.stands_by, within=60)
        serves(bus, "before", storage_uri=agent.artifact)
        way.hold()
        many.leader(other_than=old)
        serves(bus, "after", storage_uri=agent.artifact)
        eventually(lambda: old.said("stopping"), within=60)
        way.heal()  # what it had sent arrives now
        assert old.exit_code() == os.EX_TEMPFAIL
    assert terms_commanded(bus, "a") == sorted(terms_commanded(bus, "a"))
    assert agent.term == 2
    assert agent.failures == []
    proven_log(bus)
    agent.die()


def test_after_an_unload_of_the_log_one_leads(
    many: Schedulers, bus: Bus, settings: BusSettings, tmp_path: Path
) -> None:
    """Under an idle leader, several times: the broker shows one producer, and whoever it is works."""
    agent = RealAgent(bus, tmp_path, "a")
    for name in ("one", "two"):
        many.start(name)
    serves(bus, "before", storage_uri=agent.artifact)
    eventually(lambda: sum(each.leads or each.stands_by for each in many.all) == 2, within=60)
    for turn in range(4):
        with Admin(settings) as admin:
            admin.unload(under(settings.tenant, STATE_CHANGES.name))
        serves(bus, f"after-{turn}", storage_uri=agent.artifact)
        assert publishers(settings) == 1
    proven_log(bus)
    assert [each.exit_code() for each in many.all if each.process.poll() is not None] in ([], [os.EX_TEMPFAIL])
    assert terms_commanded(bus, "a") == sorted(terms_commanded(bus, "a"))
    agent.die()
