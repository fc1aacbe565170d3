"""Only a server with an accelerator of an acceptable type."""

from magnetar_common.fleet import ServerClass
from magnetar_scheduler.placement.ask import Ask
from magnetar_scheduler.placement.filters.filter import Filter, Scope

RULES = {"gpu-type": "without the right accelerators"}


def against(ask: Ask, kind: ServerClass) -> str:
    """Look for one of the types."""
    spec = ask.spec
    wrong = spec.devices and spec.gpu_types and kind.gpu_types.isdisjoint(spec.gpu_types)
    return "gpu-type" if wrong else ""


GPU_TYPE = Filter(Scope.CLASS, RULES, against)
