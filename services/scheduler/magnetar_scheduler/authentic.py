"""What the leader finds of a request's signature. It goes into the entry, so that the log alone can be decided again."""

from dataclasses import replace

from magnetar_common.bus import Message
from magnetar_common.signing import SIGNATURE, NotAuthentic, verified_publisher
from magnetar_common.state import State
from magnetar_events.codec import FINGERPRINT
from magnetar_events.entry import Input
from magnetar_events.requests import ModelEvent

AHEAD_MS = 300_000
"""A publisher's clock may be ahead of the leader's by this much (ms)."""


def examined(source: Input, message: Message, event: ModelEvent, state: State, wall: int) -> Input:
    """Return a request's input with what its signature is worth.

    A signed request is good for half of the time for which its (source, id) is remembered. The other half, less
    ``AHEAD_MS``, is for clocks that disagree: only together with the memory does the time keep a replay out.

    Args:
        source: the request's.
        message: as it came.
        event: decoded from it.
        state: with the publishers' keys.
        wall: ms since the epoch.
    """
    signature = message.properties.get(SIGNATURE, "")
    if not signature:
        return source
    publishers, fingerprint = state.policy.publishers, message.properties.get(FINGERPRINT, "")
    try:
        publisher = verified_publisher(publishers, signature, fingerprint, message.payload)
    except NotAuthentic as error:
        return replace(source, verified=error.code)
    now = max(wall, state.wall)  # a leader whose clock is behind must not open the window again
    memory = state.memory_ms()
    if memory < 2 * AHEAD_MS:
        return replace(source, verified="TOO_MANY_REQUESTS", publisher=publisher)
    if not now - memory // 2 <= event.time <= now + AHEAD_MS:
        return replace(source, verified="SIGNATURE_EXPIRED", publisher=publisher)
    return replace(source, verified="signature", publisher=publisher)
