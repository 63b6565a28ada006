"""Who pays for tenants of shared servers, day by day."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpuledger_collector.accounting.inference import AUTHENTICATED
from gpuledger_collector.accounting.inference_split import Claimant, TenantOwner
from gpuledger_collector.accounting.owner_tree import OwnerPath, path_of
from gpuledger_collector.accounting.reserved_names import booked_name


class TenantOwners:
    """Who pays for tenants, by day; it remembers whom it was asked for in vain."""

    def __init__(self, declared: Iterable[TenantOwner], dates: Mapping[int, dt.date]) -> None:
        self.unknown: set[str] = set()
        """Tenants of whom no owner is declared."""
        self.claimed: set[str] = set()
        """Tenants that callers only claim to be."""
        self._dates = dates
        self._declared: dict[str, list[TenantOwner]] = defaultdict(list)
        for tenant in declared:
            self._declared[booked_name(tenant.tenant)].append(tenant)
        self._known: dict[tuple[str, str, dt.date], Mapping[str, str]] = {}
        self._paths: dict[tuple[str, str, dt.date], OwnerPath] = {}

    def owner_of(
        self, claimant: Claimant, day_ms: int, charges_claims: bool = False
    ) -> Mapping[str, str]:
        """The owner of a tenant on a day; empty where none is declared, and for what a caller only
        claims to be, unless the server charges claims.
        """
        if not claimant.is_tenant or not claimant.tenant:
            return {}
        if claimant.trust != AUTHENTICATED and not charges_claims:
            self.claimed.add(claimant.tenant)
            return {}
        key = claimant.gateway, claimant.tenant, self._dates[day_ms]
        owner = self._known.get(key)
        if owner is None:
            owner = self._known[key] = self._find(*key)
        if not owner:
            self.unknown.add(claimant.tenant)
        return owner

    def payer_of(
        self, claimant: Claimant, day_ms: int, charges_claims: bool = False
    ) -> OwnerPath | None:
        """The owner of a tenant on a day as charges name it; None where there is none."""
        owner = self.owner_of(claimant, day_ms, charges_claims)
        if not owner:
            return None
        key = claimant.gateway, claimant.tenant, self._dates[day_ms]
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = path_of(owner)
        return path

    def _find(self, gateway: str, tenant: str, date: dt.date) -> Mapping[str, str]:
        holding = [
            each
            for each in self._declared.get(tenant, ())
            if each.gateway in ("", gateway) and each.holds_on(date)
        ]
        if not gateway and not holding:
            # A share of a server of every gateway, whose tenant asked nothing on this day.
            every = [each for each in self._declared.get(tenant, ()) if each.holds_on(date)]
            holding = every if len(every) == 1 else []
        # A declaration for this gateway is more specific than one for all.
        return max(holding, key=lambda each: each.gateway).owner if holding else {}
