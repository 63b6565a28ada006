"""Values that are made quickly differ from others of their kind in nothing else."""

from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields, replace

import pytest

from gpuledger_collector.accounting.ledger_rows import CapacityRow, EvidenceSum
from gpuledger_collector.accounting.quick_values import made_quickly
from gpuledger_collector.accounting.rating import Charge, RatedAccelerator
from gpuledger_collector.accounting.usage import HourlyUsage, UsageInterval
from gpuledger_collector.services.placements import RatedPlacement

KINDS = (
    *(CapacityRow, Charge, EvidenceSum, HourlyUsage, RatedAccelerator),
    *(RatedPlacement, UsageInterval),
)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_have_what_was_given(kind):
    """By place where that is allowed, by name, and by default; nothing is changed afterwards."""
    given = {entry.name: f"<{entry.name}>" for entry in fields(kind)}
    by_place = [given[entry.name] for entry in fields(kind) if not entry.kw_only]
    by_name = {entry.name: given[entry.name] for entry in fields(kind) if entry.kw_only}
    made = kind(*by_place, **by_name)
    assert {name: getattr(made, name) for name in given} == given
    assert made == kind(**given)
    assert hash(made) == hash(kind(**given))
    assert replace(made, **dict.fromkeys(list(given)[:1], 1)) != made
    with pytest.raises(FrozenInstanceError):
        setattr(made, next(iter(given)), 1)
    needed = {entry.name: 0 for entry in fields(kind) if entry.default is MISSING}
    by_default = kind(**needed)
    assert all(
        getattr(by_default, entry.name) is entry.default
        for entry in fields(kind)
        if entry.name not in needed
    )
    for arguments in ({}, {**given, "unknown": 1}):
        with pytest.raises(TypeError, match=rf"{kind.__name__}\.__init__\(\)"):
            kind(**arguments)


def test_what_is_done_after_making_is_refused():
    """It would not be done."""

    @dataclass(frozen=True, slots=True)
    class Checked:
        number: int

        def __post_init__(self):
            assert self.number

    @dataclass(frozen=True, slots=True)
    class Fresh:
        numbers: list[int] = field(default_factory=list)

    for kind in (Checked, Fresh):
        with pytest.raises(TypeError, match=kind.__name__):
            made_quickly(kind)
