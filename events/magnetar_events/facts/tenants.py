"""What a tenant is kept, and what it is limited to."""

from dataclasses import dataclass

from magnetar_events.tenants import Tenant
from magnetar_events.tenants import subject_of as tenant_subject


@dataclass(slots=True)
class TenantSet:
    """A tenant has this floor and this cap. What it has above the cap stays, and nothing is added.

    Attributes:
        tenant: with its limits.
        replicas: that it had at that moment.
        bytes: of device memory that were reserved for it.
    """

    tenant: Tenant
    replicas: int
    bytes: int

    @property
    def subject(self) -> str:
        """What it is about."""
        return self.tenant.subject


@dataclass(slots=True)
class TenantRemoved:
    """A tenant has neither floor nor cap any more."""

    tenant: str

    @property
    def subject(self) -> str:
        """What it is about."""
        return tenant_subject(self.tenant)
