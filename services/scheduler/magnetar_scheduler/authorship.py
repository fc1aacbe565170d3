"""Decide whose a request is: what the leader verified, never what the message claims; and who may set the policy."""

from dataclasses import dataclass

from magnetar_events.policy import Policy
from magnetar_scheduler.inputs import Request
from magnetar_scheduler.refusal import Refusal

REFUSED = {
    "UNKNOWN_PUBLISHER": "the policy knows no publisher of that name",
    "SIGNATURE_INVALID": "it is not the publisher's signature of this message",
    "SIGNATURE_EXPIRED": "it is too old or from the future, and could be a replay: check the clock, and sign it anew",
    "TOO_MANY_REQUESTS": "so many came within minutes that a replay could not be told: raise maxRequests in the policy",
}
"""What the leader finds of a signature that does not hold → why, for people."""


@dataclass(slots=True, frozen=True)
class Author:
    """Whose a request is, as :class:`magnetar_events.facts.RequestAccepted` has it."""

    actor: str
    authtype: str
    authverified: str
    publisher: str


def author_of(policy: Policy, source: Request) -> Author:
    """Return whose a request is.

    Raises:
        Refusal: that is not known and must be, or it is not whom the message names.
    """
    event, publisher = source.event, source.publisher
    claimed = event.actor
    if source.verified in REFUSED:
        raise Refusal(source.verified, "", REFUSED[source.verified])
    if source.verified != "signature":
        if policy.require_signature:
            raise Refusal("SIGNATURE_REQUIRED", "", "the policy requires a publisher's signature")
        return Author(claimed.authid, claimed.authtype, "none", "")
    if not event.cluster:
        raise Refusal("SIGNATURE_INVALID", "cluster", "a signed request names its cluster: it must hold in no other")
    if claimed.authid in ("", publisher):
        return Author(publisher, claimed.authtype, "signature", publisher)
    if not policy.publishers[publisher].gateway:
        message = f"{publisher} signed and is no gateway: it cannot ask in the name of {claimed.authid}"
        raise Refusal("ACTOR_MISMATCH", "actor.authid", message[:512])
    return Author(claimed.authid, claimed.authtype, "gateway", publisher)


def check_may_govern(now: Policy, publisher: str, what: str = "set the policy") -> None:
    """Refuse a change of what everybody depends on (policy, log version, servers, tenants) from one who may not make it.

    Raises:
        Refusal: signatures are required, and the policy does not let this publisher.
    """
    signer = now.publishers.get(publisher)
    if now.require_signature and not (signer and signer.policy):
        raise Refusal("NOT_PERMITTED", "event", f"{publisher} may not {what}")


def check_may_set(now: Policy, wanted: Policy, publisher: str) -> None:
    """Refuse a policy from one who may not set it, or after which nobody is known to be able to set another.

    Whoever turns signatures on, or leaves them on, proves by the signature that one key can still change the policy.

    Raises:
        Refusal: see above.
    """
    check_may_govern(now, publisher)
    signer = now.publishers.get(publisher)
    if wanted.require_signature:
        kept = wanted.publishers.get(publisher)
        if signer is None or kept is None or not kept.policy or kept.key != signer.key:
            message = (
                "a policy with requireSignature must be signed by a publisher who may set the policy under it too, with "
                "the same key: this is how it is known that nobody is locked out"
            )
            raise Refusal("WOULD_LOCK_OUT", "event.policy.requireSignature", message)
