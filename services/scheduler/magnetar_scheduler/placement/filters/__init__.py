"""The filters, in order. To add one: a file beside these, and a line in the table.

A server is turned down by the first rule that applies. The search asks each scope as seldom as it can; the answer for a
server is that of :meth:`Sieve.against`. What a filter of a server finds out it leaves at the site, for those after it.
"""

from collections.abc import Callable, Iterable

from magnetar_common.fleet import ServerClass
from magnetar_scheduler.placement.ask import Ask
from magnetar_scheduler.placement.filters.alive import ALIVE, STALE
from magnetar_scheduler.placement.filters.beside import BESIDE
from magnetar_scheduler.placement.filters.busy import BUSY
from magnetar_scheduler.placement.filters.capabilities import CAPABILITIES
from magnetar_scheduler.placement.filters.devices import DEVICES
from magnetar_scheduler.placement.filters.failed_here import FAILED_HERE
from magnetar_scheduler.placement.filters.filter import Filter, Scope
from magnetar_scheduler.placement.filters.gpu_type import GPU_TYPE
from magnetar_scheduler.placement.filters.loads import LOADS, LOADS_IN_CLUSTER, LOADS_ON_SERVER
from magnetar_scheduler.placement.filters.max_models import MAX_MODELS
from magnetar_scheduler.placement.filters.memory import MEMORY
from magnetar_scheduler.placement.filters.memory_limit import MEMORY_LIMIT
from magnetar_scheduler.placement.filters.pinned import PINNED
from magnetar_scheduler.placement.filters.tenant import TENANT_CAP, TENANT_KEPT, TENANTS
from magnetar_scheduler.placement.site import Site

__all__ = ["FILTERS", "PASSING", "RULES", "TENANTS", "Filter", "Scope", "Sieve"]

FILTERS: tuple[Filter, ...] = (
    ALIVE,
    TENANT_CAP,
    LOADS_IN_CLUSTER,
    CAPABILITIES,
    GPU_TYPE,
    PINNED,
    BESIDE,
    FAILED_HERE,
    MAX_MODELS,
    LOADS_ON_SERVER,
    MEMORY_LIMIT,
    DEVICES,
    BUSY,
    MEMORY,
    TENANT_KEPT,
)
"""Every filter, in the order in which they are asked."""

RULES = {rule: said for filter_ in FILTERS for rule, said in filter_.rules.items()}
"""Rule → what it says of a server that it turns down."""

PASSING = LOADS | TENANTS | {STALE}
"""Rules that stop applying by themselves: who is turned down by one of them waits, and has not failed."""


_IN_SCOPE = {scope: tuple(each for each in FILTERS if each.scope is scope) for scope in Scope}


class Sieve:
    """The filters, as far as they can turn anything down for one ask."""

    __slots__ = ("_ask", "_kind", "_site")

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._kind = _relevant(ask, Scope.CLASS)
        self._site = _relevant(ask, Scope.SERVER)

    def against_all(self) -> str:
        """Return the rule that turns every server down, or an empty string."""
        return _first(_relevant(self._ask, Scope.CLUSTER), self._ask)

    def against_class(self, kind: ServerClass) -> str:
        """Return the rule that turns a class of servers down, or an empty string."""
        return _first(self._kind, self._ask, kind)

    def against_site(self, site: Site) -> str:
        """Return the rule that turns a server down which is alive and of a class that fits, or an empty string."""
        for against in self._site:
            if rule := against(site):
                return rule
        return ""

    def against(self, site: Site) -> str:
        """Return the rule that turns a server down, whichever it is, or an empty string: what the search comes to."""
        return (
            ALIVE.against(site.server)
            or self.against_all()
            or self.against_class(self._ask.draft.state.fleet.pool_of(site.server).kind)
            or self.against_site(site)
        )


def _relevant(ask: Ask, scope: Scope) -> list[Callable[..., str]]:
    return [each.against for each in _IN_SCOPE[scope] if each.when is None or each.when(ask)]


def _first(filters: Iterable[Callable[..., str]], *about: object) -> str:
    for against in filters:
        if rule := against(*about):
            return rule
    return ""
