"""What the Pulsar client's results mean: which of our errors they are, and which are worth another try."""

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from magnetar_common.errors import (
    BusError,
    BusRefused,
    BusUnavailable,
    Fenced,
    NotPermitted,
    NotThere,
    TopicHeld,
    Unauthenticated,
)


class TryAgain(BusUnavailable):
    """The broker said "not now"."""


_ERRORS: dict[str, type[BusError]] = {
    "Timeout": BusUnavailable,
    "NotConnected": TryAgain,
    "ServiceUnitNotReady": TryAgain,
    "TooManyLookupRequestException": TryAgain,
    "BrokerPersistenceError": TryAgain,
    "BrokerMetadataError": TryAgain,
    "LookupError": TryAgain,
    "ProducerQueueIsFull": TryAgain,
    "MemoryBufferIsFull": TryAgain,
    "ProducerBlockedQuotaExceededError": TryAgain,
    "ProducerBlockedQuotaExceededException": TryAgain,
    "ConnectError": BusUnavailable,  # the client has tried for as long as it may; under TLS it is a wrong certificate
    "AlreadyClosed": BusUnavailable,
    "Interrupted": BusUnavailable,
    "ReadError": BusUnavailable,
    "ProducerNotInitialized": BusUnavailable,
    "ConsumerNotInitialized": BusUnavailable,
    "ConsumerBusy": TopicHeld,
    "ProducerBusy": TopicHeld,
    "ProducerFenced": Fenced,
    "TopicNotFound": NotThere,
    "AuthorizationError": NotPermitted,
    "AuthenticationError": Unauthenticated,
}
"""What the client's results mean for us. What is not listed (permission, schema, size, name, …) is a refusal."""

_QUOTA = (
    "the backlog quota is full and its policy holds producers back: a subscription does not keep up; see `pulsar-admin "
    "topics stats` and `namespaces get-backlog-quotas`"
)

_HINTS = {
    "ProducerBlockedQuotaExceededError": _QUOTA,
    "ProducerBlockedQuotaExceededException": _QUOTA,
    "TopicNotFound": "there is no such topic or namespace: run `magnetar topics apply`",
    "Timeout": "not reached in time; a wrong or missing token shows as this, too",
    "IncompatibleSchema": "the topic's schema does not admit this one",
    "AuthorizationError": "the token's role may not do this here",
}


def error_of(result: str, what: str) -> BusError:
    """Return the error for a result.

    Args:
        result: the name of the client's result or exception.
        what: what was being done, to which topic.
    """
    text = f"{what}: {result}"
    if hint := _HINTS.get(result):
        text += f" ({hint})"
    return _ERRORS.get(result, BusRefused)(text)


def retrying(seconds: float) -> Retrying:
    """Return what tries again, with jitter, while the broker says "not now"; in the end the last error is raised."""
    return Retrying(
        retry=retry_if_exception_type(TryAgain),
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        stop=stop_after_delay(seconds),
        reraise=True,
    )
