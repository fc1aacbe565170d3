"""Why a request is refused."""


class Refusal(Exception):
    """A request changes nothing; what it says becomes :class:`magnetar_events.facts.RequestRejected`."""

    def __init__(self, code: str, field: str, message: str) -> None:
        super().__init__(message)
        self.code, self.field, self.message = code, field, message
