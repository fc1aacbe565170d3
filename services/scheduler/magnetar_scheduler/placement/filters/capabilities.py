"""Only a server of the right kind, with every capability that is required."""

from magnetar_common.fleet import ServerClass
from magnetar_scheduler.placement.ask import Ask
from magnetar_scheduler.placement.filters.filter import Filter, Scope

RULES = {
    "runtime": "another kind of runtime",
    "requirements": "without a capability that is required",
}


def against(ask: Ask, kind: ServerClass) -> str:
    """Compare what the class can do with what is required."""
    spec = ask.spec
    if spec.runtime.kind and kind.runtime != spec.runtime.kind:
        return "runtime"
    return "" if kind.capabilities.issuperset(spec.requirements) else "requirements"


CAPABILITIES = Filter(Scope.CLASS, RULES, against)
