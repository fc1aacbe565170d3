"""The writer's schema of a message that does not name it itself: Pulsar's schema registry knows.

Our own clients say it in a property (see :mod:`magnetar_events.codec`). Pulsar's clients in other languages register
their schema with the topic, and the broker stamps each message with the version; this turns the one into the other.
"""

import threading
from typing import Self

import structlog

from magnetar_common.admin import Admin
from magnetar_common.bus import Message
from magnetar_common.errors import BusRefused
from magnetar_common.settings import BusSettings
from magnetar_common.topics import under
from magnetar_events.codec import FINGERPRINT
from magnetar_events.schemas import fingerprint_of

_log = structlog.get_logger(__name__)


class SchemaRegistry:
    """Reads the registry once per version. Safe to use from several threads. Not for the leader's loop: it may block.

    Args:
        settings: of the broker; without an admin interface (embedded) there is no registry, and nothing to resolve.
    """

    def __init__(self, settings: BusSettings) -> None:
        self._tenant = settings.tenant
        self._admin = Admin(settings) if settings.admin_url else None
        self._known: dict[tuple[str, bytes], str] = {}
        self._lock = threading.Lock()

    def resolve(self, message: Message) -> Message:
        """Return the message with its writer's schema's fingerprint among its properties.

        One that has it, or has no schema version, is returned as it is: a reader takes that for the current schema. A
        version that the registry does not give gets a name that no schema has, so that the message is rejected as
        UNKNOWN_SCHEMA and stops nobody.

        Raises:
            BusUnavailable: the registry cannot be reached; read the message again later.
        """
        if message.properties.get(FINGERPRINT) or not message.schema_version or self._admin is None:
            return message
        place = (message.topic, message.schema_version)
        with self._lock:
            fingerprint = self._known.get(place) or self._read(self._admin, *place)
        return message._replace(properties={**message.properties, FINGERPRINT: fingerprint})

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._admin is not None:
            self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _read(self, admin: Admin, topic: str, version: bytes) -> str:
        number = int.from_bytes(version, "big")
        try:
            fingerprint = fingerprint_of(admin.schema_version(under(self._tenant, topic), number))
        except (BusRefused, ValueError, KeyError) as error:  # not there, not permitted, or not Avro
            _log.warning("a writer's schema cannot be had", topic=topic, version=number, error=str(error))
            return f"version {number}, which the registry does not give"
        self._known[topic, version] = fingerprint
        return fingerprint
