"""Why a broker let nobody in: the client says `Timeout`, `ConnectError` or `AuthorizationError`, and no more.

Asked only once something could not be opened: what is in order costs nothing.
"""

from typing import Literal

from magnetar_common import tls, tokens
from magnetar_common.admin import Admin
from magnetar_common.errors import BusError, BusUnavailable, NotPermitted, Unauthenticated, Untrusted
from magnetar_common.grants import roles_that_may
from magnetar_common.settings import BusSettings

Action = Literal["produce", "consume"]

_ASK_S = 3


def explained(error: BusError, settings: BusSettings, topic: str, action: Action) -> BusError:
    """Return the error that says what is wrong and what to do; the same one if nothing more can be found out.

    Args:
        error: why the topic could not be opened.
        settings: of the broker.
        topic: which one.
        action: for what.
    """
    if isinstance(error, NotPermitted):
        return _not_permitted(settings, topic, action)
    if not isinstance(error, BusUnavailable):
        return error
    try:
        tls.examine(settings.url, settings.trust_certs)
        if settings.admin_url:
            # The broker drops who it does not know without a word; its admin interface says 401 to the same token.
            with Admin(settings.model_copy(update={"operation_timeout_s": _ASK_S})) as admin:
                admin.broker_version()
    except (Untrusted, Unauthenticated) as reason:
        return reason
    except BusError:
        return error
    return error


def _not_permitted(settings: BusSettings, topic: str, action: Action) -> NotPermitted:
    role = tokens.claims(settings.current_token()).role or "anonymous"
    kinds = roles_that_may(action, topic)
    granted = "|".join(kinds) or "…"
    return NotPermitted(
        f"role {role} may not {action} on {topic}: an administrator permits it with "
        f"`magnetar topics grant {role} --as {granted}`"
    )
