"""The bus on a Pulsar broker, or on the embedded one that speaks Pulsar's protocol.

The only module that imports the Pulsar client, which has no types: pyright's rules about them are relaxed here and
nowhere else. Measured with pulsar-client 3.13.0; every choice below that looks odd has its reason in a measurement.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUntypedBaseClass=false, reportPrivateUsage=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingModuleSource=false

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import _pulsar
import pulsar
import structlog
from pulsar.schema import BytesSchema

from magnetar_common import tls
from magnetar_common.bus.access import Action, explained
from magnetar_common.bus.base import EARLIEST, LATEST, Message, MessageId, SendCallback
from magnetar_common.bus.identity import read_cluster_id
from magnetar_common.bus.lock import TopicLock
from magnetar_common.bus.results import error_of, retrying
from magnetar_common.errors import (
    BusError,
    BusRefused,
    BusUnavailable,
    Fenced,
    SendTimedOut,
    TopicHeld,
    Unauthenticated,
)
from magnetar_common.settings import BusSettings
from magnetar_common.topics import under
from magnetar_events.codec import FINGERPRINT

BATCHING_MS = 0
"""A batch is what piled up while the client was busy: as quick as no batching (send to acknowledgement p50 1.6 ms, 2.5
with a timer of 1 ms), and with the throughput of batches."""

MAX_PENDING = 10_000
"""Messages that may wait for an acknowledgement before ``send_async`` blocks."""

REST_S = 0.01
"""The rest of a batch, of which one message was read, is waited for this long (seconds): the client has it, or is at it."""

LAST_MS = 2_000
"""A topic's last message is waited for this long (milliseconds), once the broker has said that there is one."""

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

_own_pid = os.getpid()
"""Ours: to ask the system for each message takes longer than to make one."""


def _forked() -> None:
    global _own_pid  # noqa: PLW0603 - one a process, as the number itself
    _own_pid = os.getpid()


os.register_at_fork(after_in_child=_forked)


class _AvroBytes(BytesSchema):
    """Registers an Avro schema with the topic; the bytes pass as they are (fastavro has made them)."""

    def __init__(self, schema: str) -> None:
        super().__init__()
        self._schema_info = _pulsar.SchemaInfo(_pulsar.SchemaType.AVRO, "AVRO", schema)


class PulsarBus:
    """A connection to a Pulsar broker (``admin_url`` set) or to the embedded one (``admin_url`` empty)."""

    def __init__(self, settings: BusSettings) -> None:
        self.kind = "pulsar" if settings.admin_url else "embedded"
        self.fences = self.kind == "pulsar"
        self._settings = settings
        self._pid = _own_pid
        self._cluster_id = ""
        self._locks: list[TopicLock] = []
        if settings.url.startswith("pulsar+ssl"):
            tls.context(settings.trust_certs)  # the client would say `AuthenticationError` of a file that is not there
        self._client: Any = pulsar.Client(
            settings.url,
            authentication=_authentication(settings),
            operation_timeout_seconds=settings.operation_timeout_s,
            connection_timeout_ms=settings.operation_timeout_s * 1000,
            tls_trust_certs_file_path=settings.trust_certs or None,
            tls_validate_hostname=True,
            stats_interval_in_seconds=0,
            logger=_logger(settings),
        )

    def cluster_id(self) -> str:
        """Return the identity of the cluster's data; see :mod:`magnetar_common.bus.identity`."""
        if not self._cluster_id:
            self._cluster_id = read_cluster_id(self, self._settings.operation_timeout_s)
        return self._cluster_id

    def producer(
        self, topic: str, *, schema: str = "", exclusive: bool = False, batching: bool = False, name: str = ""
    ) -> "PulsarProducer":
        """Open a producer; see :class:`magnetar_common.bus.base.Bus`.

        Raises:
            CannotFence: `exclusive` on the embedded broker without a ``data_dir``.
        """
        log = exclusive or batching
        lock = (
            TopicLock(self._settings.data_dir, under(self._settings.tenant, topic))
            if exclusive and not self.fences
            else None
        )
        timeout_s = self._settings.operation_timeout_s
        try:
            native = self._open(
                topic,
                "produce",
                f"producer on {topic}",
                lambda: self._client.create_producer(
                    under(self._settings.tenant, topic),
                    schema=_AvroBytes(schema) if schema and self.fences else BytesSchema(),
                    access_mode=pulsar.ProducerAccessMode.Exclusive
                    if exclusive and self.fences
                    else pulsar.ProducerAccessMode.Shared,
                    # The producer's own name would have to be unique on the topic, and stays taken after a crash.
                    properties={"application": name} if name else None,
                    block_if_queue_full=True,
                    # A pipelined send that timed out, followed by one that did not, is a hole: the log never times out.
                    send_timeout_millis=0 if log else timeout_s * 1000,
                    max_pending_messages=MAX_PENDING,
                    batching_enabled=batching,
                    batching_max_publish_delay_ms=BATCHING_MS,
                    chunking_enabled=False,
                ),
            )
        except BusError as error:
            if lock is not None:
                lock.release()
            if isinstance(error, Fenced):  # on opening, this is how the broker says that somebody else holds it
                raise TopicHeld(f"{topic} is held exclusively by another producer") from error
            raise
        if lock is not None:
            self._locks.append(lock)
        return PulsarProducer(native, topic, timeout_s, lock, retries=not log)

    def reader(
        self, topic: str, after: MessageId = EARLIEST, *, compacted: bool = False, name: str = ""
    ) -> "PulsarReader":
        """Open a reader; see :class:`magnetar_common.bus.base.Bus`."""
        # The embedded broker has one ledger, and never answers to a place before its first entry.
        if not self.fences and after.entry < 0:
            after = EARLIEST
        native = self._open(
            topic,
            "consume",
            f"reader on {topic}",
            lambda: self._client.create_reader(
                under(self._settings.tenant, topic),
                _native_id(after),
                is_read_compacted=compacted,
                reader_name=name or None,
            ),
        )
        return PulsarReader(native, topic, after, embedded=not self.fences)

    def last_id(self, topic: str) -> MessageId | None:
        """Return the place of the last message (0.1 s: the client finds it by a seek, and has no other way).

        None on the embedded broker, whose readers do not begin at the last message when asked to.
        """
        if not self.fences:
            return None
        native = self._open(
            topic,
            "consume",
            f"end of {topic}",
            lambda: self._client.create_reader(
                under(self._settings.tenant, topic), pulsar.MessageId.latest, start_message_id_inclusive=True
            ),
        )
        try:
            if not native.has_message_available():
                return EARLIEST
            return _our_id(native.read_next(LAST_MS).message_id())
        except pulsar.Timeout:
            return None
        except pulsar.PulsarException as error:
            raise error_of(_name(error), f"end of {topic}") from error
        finally:
            _close(native, f"reader on {topic}")

    def anchor(self, topic: str, name: str) -> "PulsarAnchor":
        """Open a durable subscription; on the embedded broker it holds nothing (cursors do not outlive it there)."""
        if not self.fences:
            return PulsarAnchor(None, topic)
        return PulsarAnchor(
            self._open(
                topic,
                "consume",
                f"subscription {name} on {topic}",
                lambda: self._client.subscribe(
                    under(self._settings.tenant, topic),
                    name,
                    # Failover: a second scheduler may open it too. No queue: nothing is ever read through it.
                    consumer_type=pulsar.ConsumerType.Failover,
                    initial_position=pulsar.InitialPosition.Earliest,
                    receiver_queue_size=0,
                ),
            ),
            topic,
        )

    def close(self) -> None:
        """Close everything that was opened from here; nothing in a forked child, as the connection is its parent's."""
        if self._pid != _own_pid:
            return
        _close(self._client, "client")
        for lock in self._locks:
            lock.release()

    def _open(self, topic: str, action: Action, what: str, opening: Callable[[], _T]) -> _T:
        _refuse_fork(self._pid, what)

        def once() -> _T:
            try:
                return opening()
            except pulsar.PulsarException as error:
                raise error_of(_name(error), what) from error

        try:
            return retrying(self._settings.operation_timeout_s)(once)
        except BusError as error:
            why = explained(error, self._settings, topic, action)
            if why is error:
                raise
            raise why from error


class PulsarProducer:
    """Writes to one topic."""

    def __init__(
        self,
        native: pulsar.Producer,
        topic: str,
        timeout_s: float,
        lock: TopicLock | None,
        *,
        retries: bool,
    ) -> None:
        self.topic = topic
        self._native: Any = native
        self._timeout_s = timeout_s
        self._lock = lock
        self._retries = retries
        self._pid = _own_pid
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether the broker is reached right now."""
        return not self._closed and self._pid == _own_pid and bool(self._native.is_connected())

    def send(self, payload: bytes, *, key: str = "", properties: Mapping[str, str] | None = None) -> MessageId:
        """Store one message and return its place; see :class:`magnetar_common.bus.base.Producer`.

        A "not now" is tried again (inputs are idempotent), except on the log's producer, whose order is sacred.
        """

        def once() -> MessageId:
            answer: Future[MessageId | BusError] = Future()
            self.send_async(payload, answer.set_result, key=key, properties=properties)
            try:
                stored = answer.result(self._timeout_s)
            except TimeoutError:
                raise SendTimedOut(f"{self.topic}: not acknowledged in {self._timeout_s} s") from None
            if isinstance(stored, BusError):
                raise stored
            return stored

        return retrying(self._timeout_s)(once) if self._retries else once()

    def send_async(
        self, payload: bytes, callback: SendCallback, *, key: str = "", properties: Mapping[str, str] | None = None
    ) -> None:
        """Queue one message; see :class:`magnetar_common.bus.base.Producer`."""
        topic = self.topic
        _refuse_fork(self._pid, f"producer on {topic}")

        def acknowledged(result: Any, native_id: Any) -> None:
            # The client swallows (or dies of) whatever is raised here.
            try:
                if result == pulsar.Result.Ok:
                    callback(_our_id(native_id))
                elif result == pulsar.Result.Timeout:
                    callback(SendTimedOut(f"{topic}: not acknowledged in time"))
                else:
                    callback(error_of(result.name, f"send to {topic}"))
            except Exception:  # noqa: BLE001 - see above
                _log.exception("send callback failed", topic=topic)

        # The wrapper checks eleven types for each message, which takes longer than to make it.
        message = _pulsar.MessageBuilder()
        message.content(payload)
        for name, value in properties.items() if properties else ():
            message.property(name, value)
        if key:
            message.partition_key(key)
        self._native._producer.send_async(message.build(), acknowledged)  # noqa: SLF001

    def flush(self) -> None:
        """Do nothing: nothing waits (`BATCHING_MS`).

        The client's own ``flush`` blocks until all is acknowledged; its ``flush_async`` takes the producer's lock while
        it holds the GIL, and deadlocks with a send callback that holds them the other way round (seen once in 30 s).
        """

    def close(self) -> None:
        """Release the topic; nothing in a forked child: it is its parent's."""
        if self._closed or self._pid != _own_pid:
            return
        self._closed = True
        _close(self._native, f"producer on {self.topic}")
        if self._lock is not None:
            self._lock.release()


class PulsarReader:
    """Reads one topic. The client reconnects by itself, after the last message that it handed out."""

    def __init__(self, native: pulsar.Reader, topic: str, after: MessageId, *, embedded: bool) -> None:
        self.topic = topic
        self._native: Any = native
        self._after = EARLIEST if after == LATEST else after
        self._embedded = embedded
        self._held: Message | None = None
        self._pid = _own_pid
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether the broker is reached right now."""
        return not self._closed and self._pid == _own_pid and bool(self._native.is_connected())

    def read(self, timeout: float) -> Message | None:
        """Return the next message, or None; see :class:`magnetar_common.bus.base.Reader`."""
        _refuse_fork(self._pid, f"reader on {self.topic}")
        held, self._held = self._held, None
        return held or self._next(timeout)

    def _next(self, timeout: float) -> Message | None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                native = self._native._reader.read_next(  # noqa: SLF001 - the wrapper costs a third more
                    max(0, round((deadline - time.monotonic()) * 1000))
                )
            except pulsar.Timeout:
                return None
            except pulsar.PulsarException as error:
                raise BusUnavailable(f"{self.topic}: reading failed: {_name(error)}") from error
            place = _our_id(native.message_id())
            # The broker starts at an entry, whose batch may have been read in part; and pulsar-lite hands a reader that
            # opens while somebody writes the same messages two or three times, going back by up to twenty.
            if place > self._after:
                self._after = place
                return _our_message(self.topic, place, native)

    def at_end(self) -> bool:
        """Whether the broker says that nothing more is stored right now."""
        if self._held is not None or not self.is_connected:  # it would be asked for as long as the operation time-out
            return False
        try:
            ended = not self._native.has_message_available()
        except pulsar.PulsarException as error:
            # pulsar-lite's answer for a topic without a single message is "UnknownError (Topic has no messages)"
            return self._embedded and _name(error) == "UnknownError"
        if (
            ended and self._embedded
        ):  # it says so from the first message of the last batch on; the rest has come with that
            try:
                self._held = self._next(REST_S)
            except BusUnavailable:
                return False
        return ended and self._held is None

    def close(self) -> None:
        """Stop reading; nothing in a forked child: it is its parent's."""
        if self._closed or self._pid != _own_pid:
            return
        self._closed = True
        _close(self._native, f"reader on {self.topic}")


class PulsarAnchor:
    """A durable subscription that is only ever acknowledged."""

    def __init__(self, native: pulsar.Consumer | None, topic: str) -> None:
        self._native: Any = native
        self._topic = topic
        self._pid = _own_pid

    def advance(self, to: MessageId) -> None:
        """Let go of everything before `to`'s entry (a whole entry at a time: one message of a batch keeps it)."""
        if self._native is None:
            return
        _refuse_fork(self._pid, f"subscription on {self._topic}")
        if to.batch >= 0:
            if to.entry == 0:
                return
            to = MessageId(to.ledger, to.entry - 1)
        try:
            # Returns at once: the client gathers acknowledgements for 100 ms.
            self._native.acknowledge_cumulative(_native_id(to))
        except pulsar.PulsarException as error:
            _log.warning("anchor not advanced: more is kept than needed", topic=self._topic, error=str(error))

    def close(self) -> None:
        """Close the connection; the subscription stays."""
        native, self._native = self._native, None
        if native is not None and self._pid == _own_pid:
            _close(native, f"subscription on {self._topic}")


def _authentication(settings: BusSettings) -> pulsar.Authentication | None:
    token = settings.current_token()
    if not settings.token_file:
        return pulsar.AuthenticationToken(token) if token else None
    last = [token]

    def current() -> str:
        # Called on a thread of the client's at each connection, and when the broker asks again; it must not raise.
        try:
            last[0] = settings.current_token()
        except Unauthenticated as error:
            _log.error("the token as it was is used: %s", error)
        return last[0]

    return pulsar.AuthenticationToken(current)


def _logger(settings: BusSettings) -> pulsar.FileLogger:
    # A Python logger takes the GIL for each of the client's debug lines (10 times slower) and can abort at exit; the
    # console logger writes to standard output, which is for results. The embedded broker answers "error" to harmless
    # questions (the end of an empty topic), so that its log goes beside its data.
    beside = settings.data_dir if not settings.admin_url else ""
    file = settings.client_log or (str(Path(beside) / "pulsar-client.log") if beside else "/dev/stderr")
    return pulsar.FileLogger(pulsar.LoggerLevel.Warn, file)


def _refuse_fork(pid: int, what: str) -> None:
    """See that we are the process that connected: of a client's threads none lives on in a forked child.

    What the child asked for would never be answered, and what it sent never leave it (measured; pulsar-client-python#127).

    Raises:
        BusRefused: we are not.
    """
    if pid != _own_pid:
        raise BusRefused(
            f"{what}: this bus was connected by process {pid} and cannot be used by {_own_pid}, forked from it: "
            "connect after the fork"
        )


def _close(native: Any, what: str) -> None:
    try:
        native.close()
    except pulsar.PulsarException as error:
        if _name(error) != "AlreadyClosed":  # the bus was closed first
            _log.warning("closing failed", what=what, error=str(error))


def _name(error: BaseException) -> str:
    return type(error).__name__


def _native_id(place: MessageId) -> Any:
    if place == EARLIEST:
        return pulsar.MessageId.earliest
    if place == LATEST:
        return pulsar.MessageId.latest
    return _pulsar.MessageId(place.partition, place.ledger, place.entry, place.batch)


def _our_id(native: Any) -> MessageId:
    return MessageId(native.ledger_id(), native.entry_id(), native.batch_index())


def _our_message(topic: str, place: MessageId, native: Any) -> Message:
    version: int = native.int_schema_version()  # schema_version() is text, and fails from version 128 on
    try:
        key, properties = native.partition_key(), native.properties()
    except UnicodeDecodeError:  # whoever wrote this, it is no message of ours: readers reject it, and go on
        key, properties = "", {FINGERPRINT: "key or properties are not UTF-8"}
    return Message(
        topic,
        place,
        key,
        native.data(),
        properties,
        native.publish_timestamp(),
        version.to_bytes(8, "big") if version >= 0 else b"",
    )
