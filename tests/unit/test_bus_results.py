"""What the Pulsar client's results become, and which of them are tried again."""

import pytest

from magnetar_common.bus.results import TryAgain, error_of, retrying
from magnetar_common.errors import BusError, BusRefused, BusUnavailable, Fenced, NotPermitted, NotThere, TopicHeld


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        ("Timeout", BusUnavailable),
        ("NotConnected", TryAgain),
        ("ServiceUnitNotReady", TryAgain),
        ("ProducerQueueIsFull", TryAgain),
        ("AlreadyClosed", BusUnavailable),
        ("ProducerBusy", TopicHeld),
        ("ProducerFenced", Fenced),
        ("TopicNotFound", NotThere),
        ("AuthorizationError", NotPermitted),
        ("IncompatibleSchema", BusRefused),
        ("InvalidTopicName", BusRefused),
        ("MessageTooBig", BusRefused),
        ("SomethingOfALaterClient", BusRefused),
    ],
)
def test_each_result_has_its_error(result: str, kind: type[BusError]) -> None:
    """A result becomes the documented error, which names the result and what was being done."""
    error = error_of(result, "producer on topic t")
    assert type(error) is kind
    assert str(error).startswith(f"producer on topic t: {result}")


def test_not_now_is_tried_again() -> None:
    """What the broker puts off is tried until it works."""
    tries: list[int] = []

    def third_time_lucky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise error_of("ServiceUnitNotReady", "reader on t")
        return "open"

    assert retrying(10)(third_time_lucky) == "open"


@pytest.mark.parametrize("result", ["Timeout", "ProducerFenced", "AuthorizationError", "ProducerBusy", "AlreadyClosed"])
def test_what_trying_again_cannot_help_is_raised_at_once(result: str) -> None:
    """A refusal, a lost hold, or a message that may have been stored is not tried again."""
    tries: list[int] = []

    def fails() -> None:
        tries.append(1)
        raise error_of(result, "send to t")

    with pytest.raises(BusError):
        retrying(10)(fails)
    assert len(tries) == 1
