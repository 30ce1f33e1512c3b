"""What each tenant got so far, whichever policy was in charge."""

from __future__ import annotations

import dataclasses

from engine.request import Request
from policies.base import Service


class ServiceBook:
    """Totals by tenant since the engine started, for a policy that takes over.

    Of more than MOST tenants those are forgotten that nobody was admitted of for the longest time.
    """

    MOST = 100_000

    def __init__(self) -> None:
        self._tenants: dict[str, Service] = {}

    def admitted(self, request: Request, computed: int) -> None:
        """A request is let in; `computed` prompt tokens will be computed for the first time.

        From now on it says in its `service` what is generated for it.
        """
        tenant = request.submission.tenant
        service = self._tenants.pop(tenant, None) or Service()
        service.input += computed
        service.weight = request.submission.weight
        request.service = self._tenants[tenant] = service
        if len(self._tenants) > self.MOST:
            del self._tenants[next(iter(self._tenants))]

    def totals(self) -> dict[str, Service]:
        """A copy."""
        return {name: dataclasses.replace(service) for name, service in self._tenants.items()}
