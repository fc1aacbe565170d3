"""Tenants: what the models of one owner may take together, and what is kept for them."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from magnetar_events.base import Memory, Name, Wire

_Replicas = Annotated[int, Field(ge=0, le=1_000_000_000)]


class Tenant(Wire):
    """The floor and the cap of a tenant. What has no such record has neither.

    Attributes:
        name: as models name it.
        floor_replicas: while it has fewer replicas and one of its models waits, nobody who has reached theirs takes what
            that one needs; 0 = no floor.
        floor_bytes: the same in bytes of device memory.
        cap_replicas: never more replicas than this; 0 = no cap.
        cap_bytes: the same in bytes of device memory.
        over_cap: what becomes of a wish that is more than the cap allows: it waits, or it is refused.
    """

    name: Name
    floor_replicas: _Replicas = 0
    floor_bytes: Memory = 0
    cap_replicas: _Replicas = 0
    cap_bytes: Memory = 0
    over_cap: Literal["wait", "refuse"] = "wait"

    @model_validator(mode="after")
    def _floor_below_cap(self) -> "Tenant":
        for floor, cap, what in (
            (self.floor_replicas, self.cap_replicas, "Replicas"),
            (self.floor_bytes, self.cap_bytes, "Bytes"),
        ):
            if 0 < cap < floor:
                raise ValueError(f"floor{what} {floor} is above cap{what} {cap}")
        return self

    @property
    def subject(self) -> str:
        """What requests and facts about it are about; no model and no server has such a name."""
        return subject_of(self.name)


def subject_of(tenant: str) -> str:
    """Return the subject of what is said of a tenant."""
    return f"tenant:{tenant}"
