"""Build a gateway profile from its TOML file; every fault is reported with file and key."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from gpuledger_common.gateways.model import (
    KINDS,
    TRUST,
    GatewayProfile,
    TenantLabel,
    TokenFamily,
)
from gpuledger_common.profiles.model import Condition, Ignored
from gpuledger_common.profiles.read import (
    GATEWAY,
    ProfileError,
    profile_text,
    read_evidence,
    root_table,
)
from gpuledger_common.profiles.table import Table

_ID = re.compile(r"[a-z0-9][a-z0-9.-]*")


def read_gateway(path: Path) -> GatewayProfile:
    """Read a gateway profile. Raises ProfileError."""
    return parse_gateway(profile_text(path), str(path))


def parse_gateway(text: str, place: str) -> GatewayProfile:
    """Build a gateway profile from the text of a file at `place`. Raises ProfileError."""
    faults: list[str] = []
    profile = _profile(root_table(text, place, faults))
    if faults:
        raise ProfileError("; ".join(faults))
    return replace(profile, fingerprint=hashlib.sha256(text.encode()).hexdigest()[:8])


def _profile(root: Table) -> GatewayProfile:
    root.choice("kind", (GATEWAY,))
    identity = root.text("id")
    if identity and not _ID.fullmatch(identity):
        root.fault("id", f"{identity!r} is not lower-case letters, digits, dots and hyphens")
    match = root.table("match")
    tables = root.tables("tokens")
    if not tables:
        root.fault("tokens", "is required: at least one [[tokens]] table")
    families: dict[str, tuple[TokenFamily, ...]] = {}
    for table in tables:
        for family in _families(table):
            families[family.name] = (*families.get(family.name, ()), family)
    tenants = tuple(map(_tenant, root.tables("tenant_label")))
    values, model, backend = root.table("tenants"), root.table("model"), root.table("backend")
    page = root.table("page")
    profile = GatewayProfile(
        identity,
        root.text("title"),
        read_evidence(root.table("evidence")),
        match.texts("families", is_required=True),
        _condition(match),
        tenants,
        values.texts("none"),
        values.texts("overflow"),
        values.texts("not_read"),
        model.texts("labels"),
        backend.texts("labels"),
        page.flag("is_server"),
        page.flag("needs_tenant"),
        page.choice("counters_start", ("process", "unknown"), "process") == "process",
        families,
        tuple(entry for table in root.tables("ignore") for entry in _ignored(table)),
        root.texts("limits"),
    )
    for tenant in tenants:
        if tenant.label in profile.not_read:
            root.fault("tenants.not_read", f"{tenant.label!r} is the label of a [[tenant_label]]")
    for table in (match, values, model, backend, page, root):
        table.close()
    return profile


def _condition(table: Table) -> Condition:
    return Condition(table.mapping("where"), table.texts("unless"))


def _tenant(table: Table) -> TenantLabel:
    tenant = TenantLabel(
        table.text("label"), cast(Any, table.choice("trust", TRUST)), table.text("reason")
    )
    table.close()
    return tenant


def _families(table: Table) -> list[TokenFamily]:
    kind = cast(Any, table.choice("kind", KINDS))
    condition = _condition(table)
    families = []
    for rank, entry in enumerate(table.texts_or_tables("families")):
        own = _condition(entry)
        where = Condition({**condition.where, **own.where}, (*condition.unless, *own.unless))
        families.append(TokenFamily(entry.text("name"), kind, where, rank))
        entry.close()
    table.close()
    return families


def _ignored(table: Table) -> list[Ignored]:
    reason = table.text("reason")
    entries = [Ignored(pattern, reason) for pattern in table.texts("families", is_required=True)]
    table.close()
    return entries
