"""CloudEvents' attributes as message properties, after the binary mode of its Kafka binding (``ce_*``).

Whoever looks at a topic sees what a message is without decoding it. Readers of Magnetar need none of these.
"""

from datetime import UTC, datetime

from magnetar_events.codec import FINGERPRINT
from magnetar_events.reports import AgentEvent
from magnetar_events.requests import ModelEvent
from magnetar_events.schemas import fingerprint

SPEC_VERSION = "1.0"
CONTENT_TYPE = "application/avro"


def of_request(event: ModelEvent) -> dict[str, str]:
    """Return the properties of a request on ``model-events``."""
    return _properties(
        "model-events", event.id, event.source, event.event, event.time, event.event.subject, event.traceparent
    )


def of_report(event: AgentEvent) -> dict[str, str]:
    """Return the properties of a report on ``agent-events``: its source is one life of an agent."""
    source = f"{event.server_key}/{event.incarnation}"
    subject = getattr(event.report, "model", "") or event.server_key
    return _properties("agent-events", str(event.number), source, event.report, event.time, subject, event.traceparent)


def _properties(
    contract: str, identifier: str, source: str, event: object, time_ms: int, subject: str, traceparent: str
) -> dict[str, str]:
    properties = {
        FINGERPRINT: fingerprint(contract),
        "content-type": CONTENT_TYPE,
        "ce_specversion": SPEC_VERSION,
        "ce_id": identifier,
        "ce_source": source,
        "ce_type": f"magnetar.{type(event).__name__}",
        "ce_subject": subject,
    }
    moment = _rfc3339(time_ms)
    if moment:
        properties["ce_time"] = moment
    if traceparent:
        properties["ce_traceparent"] = traceparent
    return properties


def _rfc3339(time_ms: int) -> str:
    """Return a time as CloudEvents writes it, or nothing for one that no calendar holds (the attribute is optional)."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
