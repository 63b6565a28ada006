"""Read an exporter's page by a profile: its accelerators with their readings, holders and health.

A reading that is repeated (for each pod that shares a device, for each part of it) is counted once.
Parts are accelerators of their own and get only what is measured of a part; the shares of the parts
of a device never add up to more than the device.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpuledger_common.health import page_health
from gpuledger_common.mig import fit_shares
from gpuledger_common.plurals import plural
from gpuledger_common.profiles.lines import Lines, PageSample
from gpuledger_common.profiles.model import Family, Profile, ValueRule
from gpuledger_common.profiles.series import Described, Uncounted, derived_labels, describe
from gpuledger_common.readings import WHOLE_GPU, Accelerator, Health, Workload

POD_SUMS = {"gpu_utilization_ratio": 1.0, "gpu_memory_used_bytes": 1e15}
"""These metrics, with the upper bound of their sum over the pods of a device."""
MAX_DEVICES = 1_024
"""Accelerators and parts of one page; more are not counted, which the node's heartbeat says."""
MAX_HOLDERS = 256
"""Workloads of one accelerator; the lines of others say nothing about it."""
MAX_PROBLEMS = 50
MAX_REASONS = 5


def device_value(values: Collection[float], upper_bound: float) -> float:
    """A device's value from one line per pod: equal values repeat the device's, different ones are
    the pods' parts.

    dcgm-exporter repeated the device's value for every pod that shares it until 4.5.1, and gives
    each pod's own part since; a part is 0 for a pod without a process.
    """
    return max(values) if len(set(values)) == 1 else min(sum(values), upper_bound)


@dataclass
class PageAccelerator:
    """One accelerator of a page: its identity, its values, and the workloads that its lines name."""

    accelerator: Accelerator
    host: str
    driver: str | None = None
    values: dict[str, float | int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Why values were refused, by metric."""
    failed: dict[str, str] = field(default_factory=dict)
    """Values that mean a failed read, by metric."""
    series: dict[tuple[str, str], set[frozenset[tuple[str, str]]]] = field(
        default_factory=dict, compare=False
    )
    """Labels of the series that give its values, by family and metric."""
    owners: dict[tuple[str, str], Workload] = field(default_factory=dict)
    causes: list[str] = field(default_factory=list)
    """Why it is not well, by the exporter."""
    share: int = 0
    amounts: dict[str, float] = field(default_factory=dict)
    """What a part has, or a device, of that by which shares are measured."""
    ranks: dict[str, int] = field(default_factory=dict)
    by_pod: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def health(self) -> Health:
        """Its health by its readings, or by what the exporter says."""
        verdict = page_health(self.values)
        return (
            Health("degraded", self.causes[0])
            if verdict.status == "ok" and self.causes
            else verdict
        )

    @property
    def absent(self) -> dict[str, str]:
        """Why metrics have no value although the page has a line for them."""
        reasons = self.failed | self.refused
        return {metric: reason for metric, reason in reasons.items() if metric not in self.values}


@dataclass(frozen=True, slots=True)
class Page:
    """A page that was read: accelerators by uuid, messages about what is odd, and the number of
    refused values.
    """

    profile: Profile
    accelerators: Mapping[str, PageAccelerator]
    problems: tuple[str, ...]
    refused: int = 0

    @property
    def hosts(self) -> set[str]:
        """The hosts that its lines name."""
        return {entry.host for entry in self.accelerators.values()}


def read_page(profile: Profile, lines: Lines, host: str = "") -> Page:
    """The accelerators of a page.

    Raises ValueError when no line names one. `host` is that of lines without one.
    """
    page: dict[str, PageAccelerator] = {}
    uncounted: dict[str, None] = {}
    excess: Counter[str] = Counter()
    same: dict[str, Mapping[str, str]] = {}
    for sample in _understood(profile, lines.samples):
        labels = _with_same(profile, sample.labels, same)
        try:
            described = describe(profile, sample.name, labels, host)
        except Uncounted as error:
            uncounted[str(error)] = None
            continue
        if described is None:
            continue
        beyond = _what_is_beyond(page, described)
        if beyond:
            excess[beyond] += 1
            continue
        entry = _take(page, described, sample.value)
        if "*" not in profile.repeated:
            _note_series(entry, described, labels)
    found = len(page)
    problems = [*lines.problems, *list(uncounted)[:MAX_REASONS], *_settle_parts(profile, page)]
    problems += [
        f"{plural(count, 'line')} of more than {what}: not counted"
        for what, count in excess.items()
    ]
    problems += _ambiguous(profile, page)
    if not found and not uncounted:
        raise ValueError(
            f"no line names a device by the profile {profile.id}: is this the page of"
            f" {profile.title}?"
        )
    refused = sum(len(entry.refused) for entry in page.values())
    if refused:
        refusals = (refusal for entry in page.values() for refusal in entry.refused.items())
        reasons = dict.fromkeys(f"{metric} {reason}" for metric, reason in refusals)
        problems.append(
            f"{plural(refused, 'value')} refused: {'; '.join(list(reasons)[:MAX_REASONS])}"
        )
    problems += _missing_devices(profile, lines, page)
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [f"{len(problems) - MAX_PROBLEMS} more messages"]
    return Page(profile, page, tuple(problems), refused)


def _what_is_beyond(page: Mapping[str, PageAccelerator], described: Described) -> str:
    """The bound that a line about one more accelerator or holder would exceed; empty where it
    exceeds none.
    """
    entry = page.get(described.accelerator.uuid)
    if entry is None:
        return f"{MAX_DEVICES} accelerators" if len(page) >= MAX_DEVICES else ""
    owner = described.owner
    is_new = owner is not None and (owner.kind, owner.id) not in entry.owners
    return (
        f"{MAX_HOLDERS} holders of one accelerator"
        if is_new and len(entry.owners) >= MAX_HOLDERS
        else ""
    )


def _understood(profile: Profile, samples: Collection[PageSample]) -> Iterator[PageSample]:
    """The samples whose families the profile knows, with all labels that it can give them."""
    known = [
        PageSample(name, derived_labels(profile, sample.labels), sample.value)
        for sample in samples
        if (name := profile.plain_name(sample.name)) is not None
    ]
    for join in profile.joins:
        rows: dict[tuple[str, ...], dict[str, str]] = {}
        for sample in known:
            if sample.name in join.families and all(map(sample.labels.get, join.on)):
                copied = {name: value for name in join.labels if (value := sample.labels.get(name))}
                rows.setdefault(tuple(sample.labels[name] for name in join.on), {}).update(copied)
        known = [
            PageSample(
                sample.name,
                {
                    **rows.get(tuple(sample.labels.get(name, "") for name in join.on), {}),
                    **sample.labels,
                },
                sample.value,
            )
            for sample in known
        ]
    yield from known


def _with_same(
    profile: Profile, labels: Mapping[str, str], same: dict[str, Mapping[str, str]]
) -> Mapping[str, str]:
    """The labels with the key of the device that another line names by the same index on this page."""
    index = labels.get(profile.device.same, "")
    key = {
        label: labels[label]
        for labels_of_key in profile.device.keys
        for label in labels_of_key
        if labels.get(label)
    }
    if key:
        same.setdefault(index, key)
        return labels
    return {**labels, **same.get(index, {})} if profile.device.same else labels


def _take(page: dict[str, PageAccelerator], described: Described, value: float) -> PageAccelerator:
    """Add what a line says of an accelerator."""
    accelerator = described.accelerator
    entry = page.get(accelerator.uuid)
    if entry is None:
        entry = page[accelerator.uuid] = PageAccelerator(accelerator, described.host)
    elif accelerator.model and not entry.accelerator.model:
        entry.accelerator = accelerator
    entry.driver = entry.driver or described.driver
    if described.owner is not None:
        entry.owners.setdefault((described.owner.kind, described.owner.id), described.owner)
    if described.health is not None and value in described.health.values:
        entry.causes.append(described.health.cause)
    share = described.share
    if (
        share is not None
        and (amount := _check_range(entry, share.name, share.rule, value)) is not None
    ):
        if share.of:
            entry.amounts[share.of] = max(amount, entry.amounts.get(share.of, 0))
        else:
            entry.share = max(entry.share, round(amount * WHOLE_GPU))
    pod = "" if described.owner is None else described.owner.id
    for family in described.families:
        scaled = _check_range(entry, family.metric.name, family.rule, value)
        if scaled is not None:
            _combine(entry, family, scaled, pod)
    return entry


def _note_series(entry: PageAccelerator, described: Described, labels: Mapping[str, str]) -> None:
    """Keep the labels of a series that gives a value, where nothing says how several of its family
    are combined.
    """
    for family in described.families:
        if not family.is_repeated:
            entry.series.setdefault((family.name, family.metric.name), set()).add(
                frozenset(labels.items())
            )


def _ambiguous(profile: Profile, page: Mapping[str, PageAccelerator]) -> list[str]:
    """Devices for which one family has several series: perhaps several devices that share a key."""
    problems = []
    for uuid, entry in page.items():
        for (family, _), series in entry.series.items():
            if differing := _differing(profile, series):
                rows = {
                    frozenset(label for label in labels if label[0] in differing)
                    for labels in series
                }
                problems.append(
                    f"{uuid}: {len(rows)} different series of one family for one device: {family}"
                    f" differs in {', '.join(sorted(differing)[:MAX_REASONS])}; add a label to"
                    " device.keys, or declare combine"
                )
                break
    more = len(problems) - MAX_REASONS
    return [
        *problems[:MAX_REASONS],
        *([f"{plural(more, 'more device')} with different series"] if more > 0 else []),
    ]


def _differing(profile: Profile, series: Collection[frozenset[tuple[str, str]]]) -> set[str]:
    """The labels in which series differ, without those of holders and parts and those that may
    differ.
    """
    if len(series) == 1:
        return set()
    names = {name for name, _ in frozenset.union(*series) - frozenset.intersection(*series)}
    return {name for name in names if not profile.may_differ(name)}


def _check_range(entry: PageAccelerator, name: str, rule: ValueRule, raw: float) -> float | None:
    """The value in base units; one outside its range is refused and counted."""
    value = rule.to_base_units(raw)
    if value is None:
        entry.failed[name] = f"the exporter gives {raw:.12g}, which means no value"
    elif not rule.is_possible(value):
        entry.refused[name] = rule.refusal(value)
        return None
    return value


def _combine(entry: PageAccelerator, family: Family, value: float, pod: str) -> None:
    """Count a value once, whatever is repeated; a candidate that is preferred replaces another."""
    metric = family.metric
    rank = entry.ranks.get(metric.name)
    if rank is None or family.rank < rank:
        entry.ranks[metric.name] = family.rank
        entry.values.pop(metric.name, None)
        entry.by_pod.pop(metric.name, None)
    elif family.rank > rank:
        return
    before = entry.values.get(metric.name)
    if family.combine == "pods":
        by_pod = entry.by_pod.setdefault(metric.name, {})
        by_pod[pod] = max(value, by_pod.get(pod, value))
        combined = device_value(by_pod.values(), POD_SUMS.get(metric.name, float("inf")))
    elif before is None:
        combined = value
    else:
        combined = before + value if family.combine == "sum" else max(before, value)
    entry.values[metric.name] = int(combined) if metric.column_kind == "i8" else combined


def _settle_parts(profile: Profile, page: dict[str, PageAccelerator]) -> list[str]:
    """Let parts replace their device, and fit their shares into it; returns what is odd about them."""
    problems = []
    parts: dict[str, list[PageAccelerator]] = defaultdict(list)
    devices: dict[str, dict[str, float]] = {}
    for uuid, entry in list(page.items()):
        if entry.accelerator.mig_instance is None:
            continue
        # Held parts replace the device's own lines, which would count it a second time.
        whole = page.pop(entry.accelerator.device_uuid, None)
        totals = devices.setdefault(
            entry.accelerator.device_uuid, {} if whole is None else whole.amounts
        )
        for name, amount in entry.amounts.items():
            entry.share = max(
                entry.share, round(amount / totals[name] * WHOLE_GPU) if totals.get(name) else 0
            )
        if not entry.accelerator.gpu_micro:
            if not entry.share:
                del page[uuid]
                problems.append(f"{uuid}: no share was read, so it is not counted")
                continue
            entry.accelerator = replace(entry.accelerator, gpu_micro=min(entry.share, WHOLE_GPU))
        parts[entry.accelerator.device_uuid].append(entry)
    for device, entries in parts.items():
        total = sum(entry.accelerator.gpu_micro for entry in entries)
        if total > WHOLE_GPU and profile.part is not None and profile.part.share != "mig":
            problems.append(
                f"{device}: its parts add up to {total / WHOLE_GPU:g} devices; scaled down to one"
            )
    for entry, accelerator in zip(
        page.values(), fit_shares(entry.accelerator for entry in page.values()), strict=True
    ):
        entry.accelerator = accelerator
    return [*problems, *_missing_parts(profile, parts)]


def _missing_parts(profile: Profile, parts: Mapping[str, list[PageAccelerator]]) -> list[str]:
    """Devices that show fewer parts than their mode has: the rest is on no line, and so in no row."""
    if profile.part is None or profile.part.share != "count" or profile.part.is_global:
        return []
    missing = []
    for device, entries in parts.items():
        shown = sum(entry.accelerator.gpu_micro for entry in entries)
        if shown < WHOLE_GPU - len(entries):
            missing.append(
                f"{device}: only {plural(len(entries), 'part')} of it, {shown / WHOLE_GPU:.0%}, on"
                " the page"
            )
    return missing


def _missing_devices(
    profile: Profile, lines: Lines, page: Mapping[str, PageAccelerator]
) -> list[str]:
    """Whether the page shows fewer devices than the exporter counts."""
    family = profile.devices_family
    counted = [
        line.value for line in lines.samples if family and profile.plain_name(line.name) == family
    ]
    shown = len(page)
    if not counted or shown >= max(counted):
        return []
    return [
        f"{profile.devices_family} says {plural(int(max(counted)), 'device')}, the page shows"
        f" {shown}"
    ]
