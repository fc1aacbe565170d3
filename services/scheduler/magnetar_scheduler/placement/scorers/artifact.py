"""Where the artifact lies already: a server that holds the same one under another version, or held it before.

What the log says is enough: a replica reports the digest of what it loaded, and an agent keeps what it fetched.
"""

from magnetar_scheduler.placement.scorers.scorer import Scorer
from magnetar_scheduler.placement.site import Site

CACHED = -2.0
"""A server that need not fetch it may have so many replicas more than another."""


def score(site: Site) -> float:
    """Return a bonus, or nothing."""
    return CACHED if site.key in site.ask.cached else 0.0


ARTIFACT = Scorer("artifact", "the server held the artifact before: -2", score, when=lambda ask: ask.cached)
