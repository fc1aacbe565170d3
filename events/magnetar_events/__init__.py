"""Magnetar's events: the wire contract as classes, and the codec. A service that only publishes imports this alone."""

from magnetar_events.codec import Codec
from magnetar_events.commands import Command
from magnetar_events.entry import Entry
from magnetar_events.records import ServiceRecord
from magnetar_events.reports import AgentEvent
from magnetar_events.requests import ModelEvent
from magnetar_events.routes import Route
from magnetar_events.voided import Voided

__version__ = "0.1.0"

MODEL_EVENT = Codec(ModelEvent, "model-events", largest=64 * 2**10)
"""Requests. The size is what an entry keeps: what was asked can always be decided again."""
AGENT_EVENT = Codec(AgentEvent, "agent-events", largest=2 * 2**20)
"""Reports. The size is an inventory of 20,000 models with names of 30 characters."""
SERVICE_RECORD = Codec(ServiceRecord, "service-registry", largest=64 * 2**10)
"""Records. A heartbeat has less than 2 KiB."""
ENTRY = Codec(Entry, "state-changes")
COMMAND = Codec(Command, "commands", largest=256 * 2**10)
ROUTE = Codec(Route, "routes")
VOIDED_MESSAGE = Codec(Voided, "voided")

__all__ = [
    "AGENT_EVENT",
    "COMMAND",
    "ENTRY",
    "MODEL_EVENT",
    "ROUTE",
    "SERVICE_RECORD",
    "VOIDED_MESSAGE",
    "AgentEvent",
    "Codec",
    "Command",
    "Entry",
    "ModelEvent",
    "Route",
    "ServiceRecord",
    "Voided",
    "__version__",
]
