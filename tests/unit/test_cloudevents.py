"""CloudEvents' attributes say what a message is without Avro."""

from magnetar_events import AGENT_EVENT, MODEL_EVENT, AgentEvent, ModelEvent, cloudevents
from magnetar_events.codec import FINGERPRINT
from magnetar_events.reports import InventoryReported, ModelLoaded
from magnetar_events.requests import DeployModel
from tests.support.world import spec


def test_a_request_names_itself_its_source_and_its_model() -> None:
    """Every required attribute of CloudEvents 1.0, time in RFC 3339, and the trace where there is one."""
    event = ModelEvent(id="7", source="billing", time=1_500, event=DeployModel(model=spec()), traceparent="00-ab-cd-01")
    assert cloudevents.of_request(event) == {
        FINGERPRINT: MODEL_EVENT.fingerprint,
        "content-type": "application/avro",
        "ce_specversion": "1.0",
        "ce_id": "7",
        "ce_source": "billing",
        "ce_type": "magnetar.DeployModel",
        "ce_subject": "default/iris",
        "ce_time": "1970-01-01T00:00:01.500Z",
        "ce_traceparent": "00-ab-cd-01",
    }


def test_a_report_is_unique_within_one_life_of_its_agent() -> None:
    """Source and id together name it; its subject is the model, or the server where there is none."""
    common = {"server": "a", "replica": 2, "incarnation": "one", "number": 5, "time": 0}
    loaded = AgentEvent(**common, report=ModelLoaded(model="default/iris", generation=1, position=3))
    properties = cloudevents.of_report(loaded)
    assert (properties["ce_source"], properties["ce_id"]) == ("local/a/2/one", "5")
    assert (properties["ce_type"], properties["ce_subject"]) == ("magnetar.ModelLoaded", "default/iris")
    assert properties[FINGERPRINT] == AGENT_EVENT.fingerprint
    assert cloudevents.of_report(AgentEvent(**common, report=InventoryReported()))["ce_subject"] == "local/a/2"


def test_a_time_that_no_calendar_holds_is_left_out() -> None:
    """What a client's clock says never keeps its request from being sent."""
    event = ModelEvent(time=2**53 - 1, event=DeployModel(model=spec()))
    assert "ce_time" not in cloudevents.of_request(event)
