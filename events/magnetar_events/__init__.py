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

MODEL_EVENT = Codec(ModelEvent, "model-events")
AGENT_EVENT = Codec(AgentEvent, "agent-events")
SERVICE_RECORD = Codec(ServiceRecord, "service-registry")
ENTRY = Codec(Entry, "state-changes")
COMMAND = Codec(Command, "commands")
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
