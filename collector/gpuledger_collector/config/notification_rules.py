"""Who is notified, when and of what: [[recipient]], [[contact]], [[anomaly_floor]] and [[action]]
tables.

[[recipient]]
address = "lead@example.com"     # "*": every mail address without its own
digest = "daily"
quiet = "22:00-07:00"
zone = "Europe/Berlin"
max_per_day = 5

[[contact]]
user = "*"
address = "{user}@example.com"

[[contact]]
team = "vision"
leads = ["lead@example.com"]

[[anomaly_floor]]
currency = "USD"
amount = 50                      # a smaller anomaly is on the pages and in no mail

[[action]]
name = "vision gives back"
team = "vision"
do = "scancel"
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, PlainSerializer, ValidationInfo, field_validator

from gpuledger_collector.config.fields import (
    Clock,
    Currency,
    Flag,
    Name,
    PositiveMicroAmount,
    QuietHours,
    Recipients,
    Text,
    Zone,
    matching,
    one_of,
    refusal,
    unique,
    whole,
)
from gpuledger_collector.config.model import Declaration
from gpuledger_collector.insight.notifications.delivery_rules import (
    DIGESTS,
    EVERYBODY,
    WEEKDAYS,
    DeliveryRules,
)
from gpuledger_collector.insight.notifications.finding_rules import (
    EVICT,
    MIN_IDLE_MINUTES,
    RECLAIMABLE_STATES,
    SCANCEL,
    AnomalyFloor,
    Contact,
)
from gpuledger_collector.insight.notifications.messages import is_address, is_recipient
from gpuledger_collector.insight.notifications.reclaim_rules import ReclaimRule

USER_FIELDS = ("address", "tag", "domains")
TEAM_FIELDS = (
    "recipients",
    "leads",
    "after_minutes",
    "confidence",
    "escalate_days",
    "summary",
    "zone",
)
KINDS = ("budget", "idle", "anomaly", "action", "summary")
MAX_MINUTES = 100 * 1440
_CONTACT, _ACTION = Contact(""), ReclaimRule("", "", "")
_DOMAIN = matching(r"[a-z0-9-]+(\.[a-z0-9-]+)+", "no domain such as example.com")
_DO = matching(
    rf"{SCANCEL}|{EVICT}|webhook:[A-Za-z0-9_-]{{1,60}}",
    f"not one of {SCANCEL}, {EVICT}, webhook:NAME",
)


_Weekday = Annotated[
    int,
    one_of(WEEKDAYS),
    AfterValidator(WEEKDAYS.index),
    PlainSerializer(lambda day: WEEKDAYS[day]),
]


class DeclaredRecipient(Declaration):
    """What a recipient wants to be sent, and when."""

    address: Text
    digest: Annotated[str, one_of(DIGESTS)] = ""
    digest_at: Clock = DeliveryRules().digest_at
    digest_on: _Weekday = DeliveryRules().digest_on
    quiet: QuietHours | None = None
    zone: Zone = "UTC"
    max_per_day: Annotated[int, whole(0, 1000)] | None = None
    pass_kinds: Annotated[tuple[Annotated[str, one_of(KINDS)], ...], AfterValidator(unique)] = (
        Field((), alias="pass")
    )

    identity = ("address",)
    conflict = ("address", "line {line} is for the same address already")

    @field_validator("address")
    @classmethod
    def _be_a_recipient(cls, address: str) -> str:
        if address != EVERYBODY and not is_recipient(address):
            raise refusal(
                "bad_recipient",
                f"{address!r} is no mail address, slack:NAME, teams:NAME, webhook:NAME or *",
            )
        return address

    def to_value(self, source: str, position: int) -> tuple[str, DeliveryRules]:  # noqa: ARG002
        """The address and its rules."""
        return self.address, DeliveryRules(
            **{name: getattr(self, name) for name in DeliveryRules.__dataclass_fields__}
        )

    @classmethod
    def from_value(cls, value: tuple[str, DeliveryRules]) -> Self:
        """The declaration of the rules of an address."""
        address, rules = value
        return cls.model_construct(
            address=address,
            **{name: getattr(rules, name) for name in DeliveryRules.__dataclass_fields__},
        )


class DeclaredContact(Declaration):
    """Who is notified of idle accelerators of a user, or of a team."""

    # who the contact is for decides which of the others it may have; a tag is trusted within
    # domains only
    user: Text = ""
    team: Name = Field("", validate_default=True)
    domains: Annotated[tuple[Annotated[str, _DOMAIN], ...], AfterValidator(unique)] = ()
    tag: Text = ""
    address: Text = Field("", validate_default=True)
    recipients: Recipients = ()
    leads: Recipients = ()
    after_minutes: Annotated[int, whole(MIN_IDLE_MINUTES, MAX_MINUTES)] = _CONTACT.after_minutes
    confidence: Annotated[int, whole(0, 100)] = _CONTACT.confidence
    escalate_days: Annotated[int, whole(1, 100)] = _CONTACT.escalate_days
    summary: Flag = True
    zone: Zone = "UTC"

    identity = ("user", "team")
    conflict = ("user", "line {line} is a contact of the same user or team already")

    @field_validator("team")
    @classmethod
    def _be_of_a_user_or_a_team(cls, team: str, info: ValidationInfo) -> str:
        if bool(team) == bool(info.data.get("user")):
            raise refusal("one_of_two", "a contact is for a user or for a team: give one of them")
        return team

    @field_validator(*USER_FIELDS, *TEAM_FIELDS)
    @classmethod
    def _fit(cls, value: Any, info: ValidationInfo) -> Any:
        is_of_team = bool(info.data.get("team"))
        if value != "" and "team" in info.data and is_of_team == (info.field_name in USER_FIELDS):
            raise refusal(
                "not_here", f"belongs to a contact of a {'user' if is_of_team else 'team'}"
            )
        return value

    @field_validator("tag")
    @classmethod
    def _trust_domains_only(cls, tag: str, info: ValidationInfo) -> str:
        if tag and (info.data.get("user") != "*" or not info.data.get("domains", True)):
            raise refusal(
                "no_domains", 'belongs to user = "*" with domains = [...]: anybody can write a tag'
            )
        return tag

    @field_validator("address")
    @classmethod
    def _name_an_address(cls, address: str, info: ValidationInfo) -> str:
        user = info.data.get("user")
        if address and not is_address(address.replace("{user}", "ada")):
            raise refusal(
                "bad_recipient", f"{address!r} is no mail address such as {{user}}@example.com"
            )
        if user == "*" and address and "{user}" not in address:
            raise refusal("same_for_all", "of any user must hold {user}")
        if user and not address and not info.data.get("tag", True):
            raise refusal("empty", "is empty")
        return address

    def to_value(self, source: str, position: int) -> Contact:  # noqa: ARG002
        """The contact, named for whom it is."""
        return Contact(f"user {self.user}" if self.user else f"team {self.team}", **vars(self))

    @classmethod
    def from_value(cls, value: Contact) -> Self:
        """The declaration with the keys of a user or those of a team."""
        names = ("user", *USER_FIELDS) if value.user else ("team", *TEAM_FIELDS)
        return cls.model_construct(**{name: getattr(value, name) for name in names})


class DeclaredAnomalyFloor(Declaration):
    """What a spending anomaly must cost beyond the usual before anybody is notified of it."""

    currency: Currency
    amount_micro: PositiveMicroAmount = Field(alias="amount")

    value_type = AnomalyFloor
    identity = ("currency",)
    conflict = ("currency", "line {line} has a floor of this currency already")


class DeclaredAction(Declaration):
    """What a team opts in to: a reclaim action for its idle workloads."""

    name: Text
    team: Name
    do: Annotated[str, _DO]
    states: Annotated[
        tuple[Annotated[str, one_of(RECLAIMABLE_STATES)], ...], AfterValidator(unique)
    ] = _ACTION.states
    after_minutes: Annotated[int, whole(60, MAX_MINUTES)] = _ACTION.after_minutes
    notice_minutes: Annotated[int, whole(15, MAX_MINUTES)] = _ACTION.notice_minutes
    dry_run_hours: Annotated[int, whole(1, 1000)] = _ACTION.dry_run_hours
    confidence: Annotated[int, whole(50, 100)] = _ACTION.confidence
    max_per_hour: Annotated[int, whole(1, 1000)] = _ACTION.max_per_hour

    value_type = ReclaimRule
    identity = ("name",)

    @field_validator("team")
    @classmethod
    def _be_one_team(cls, team: str) -> str:
        if team == "*":
            raise refusal("one_team", "names one team: each opts in by itself")
        return team

    @field_validator("states")
    @classmethod
    def _default_if_empty(cls, states: tuple[str, ...]) -> tuple[str, ...]:
        return states or _ACTION.states
