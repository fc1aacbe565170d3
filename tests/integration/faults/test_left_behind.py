"""What a creation that timed out leaves behind on the broker: nothing, once its connection is closed."""

import pytest

from magnetar_common.admin import Admin
from magnetar_common.bus import Bus, connect
from magnetar_common.errors import BusError
from magnetar_common.settings import BusSettings
from magnetar_common.topics import STATE_CHANGES, under
from magnetar_events.schemas import schema_json
from tests.support.leading import eventually
from tests.support.proxy import Proxy

SCHEMA = schema_json(STATE_CHANGES.schema)

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(240)]


def test_l5_an_exclusive_creation_that_times_out_leaves_no_waiter(settings: BusSettings, bus: Bus) -> None:
    """Its answer never came, so the broker may hold the topic for it: who closes the connection lets go of that, too."""
    topic = under(settings.tenant, STATE_CHANGES.name)
    bus.producer(STATE_CHANGES.name, schema=SCHEMA).close()  # the topic is there
    with Admin(settings) as admin, Proxy(settings.url) as way:
        challenger = connect(settings.model_copy(update={"url": way.url, "operation_timeout_s": 3}))
        reader = challenger.reader(STATE_CHANGES.name)  # connected
        way.hold("down")
        with pytest.raises(BusError, match="Timeout"):
            challenger.producer(STATE_CHANGES.name, schema=SCHEMA, exclusive=True)
        way.heal()
        challenger.close()
        reader.close()

        def left() -> tuple[int, int]:
            stats = admin.stats(topic)
            return len(stats["publishers"]), stats.get("waitingPublishers", stats.get("waitingExclusiveProducers", 0))

        eventually(lambda: left() == (0, 0), what="nothing is left behind")
    held = bus.producer(STATE_CHANGES.name, schema=SCHEMA, exclusive=True)
    held.close()
