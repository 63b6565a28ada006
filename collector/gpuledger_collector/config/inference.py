"""Shared model servers, their tenants, and what APIs charge for the same: [[inference]], [[tenant]]
and [[api_price]] tables.

    [[inference]]
    name = "qwen"
    gateway = "litellm"
    models = ["hosted_vllm/Qwen3-32B", "qwen*"]
    backends = ["http://10.0.0.7:8000/*"]
    served_by = { namespace = "llm", pod = "qwen-*" }
    weights = "1 : 0.1 : 4"
    idle = "reservations"
    reserved = { team-vision = 0.5, team-nlp = 0.25 }
    mode = "charged"
    effective_from = 2026-10-01

    [[tenant]]
    gateway = "litellm"
    tenant = "team-vision"
    owner = { team = "vision" }

    [[api_price]]
    name = "an API with the same model"
    models = ["hosted_vllm/Qwen3-32B"]
    input = 0.15                            # of a million tokens
    cached = 0.003
    output = 0.60
    currency = "USD"

`models` and `backends` are what the gateway says, with `*` as wildcard; `served_by` matches tags
and facts of the workloads that answer, as a rule does. Weights are those of an input, a cached and
an output token; `weights_from = "gpu_seconds"` takes that of output from SGLang's GPU seconds of
each day that has them. By default nothing is billed; `mode = "charged"` bills the owners of tenants, and
`claims = "charged"` also for tenants that callers only claim to be. Dates are days of the bill, in
its zone; `effective_to` is not included.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, field_validator

from gpuledger_collector.accounting.api_prices import ApiPrice
from gpuledger_collector.accounting.inference_split import (
    BY_RESERVATIONS,
    BY_TOKENS,
    CLAIMS,
    DECLARED,
    GPU_SECONDS,
    IDLE_RULES,
    MODES,
    SHOWBACK,
    SHOWN,
    WEIGHTS_FROM,
    SharedServer,
    TenantOwner,
    parse_weights,
    split_patterns,
)
from gpuledger_collector.accounting.reserved_names import is_reserved, reserved_message
from gpuledger_collector.config.attribution import check_level
from gpuledger_collector.config.fields import (
    Currency,
    Name,
    Rate,
    Scalar,
    Text,
    decimal,
    one_of,
    read_text,
    refusal,
)
from gpuledger_collector.config.model import Dated

_PLACES = frozenset({"pool", "node"})
"""Facts of what a workload holds, which may change while it runs."""


def _check_patterns(patterns: tuple[str, ...], *, is_needed: bool) -> tuple[str, ...]:
    """Patterns that can be written as one text. Raises a refusal."""
    if any("," in pattern or not pattern for pattern in patterns):
        raise refusal("bad_list", "must be texts without commas")
    if not patterns and is_needed:
        raise refusal("empty", "names no model")
    return patterns


class DeclaredInference(Dated):
    """A model server that several tenants share."""

    name: Name
    gateway: Text = ""
    models: tuple[Text, ...]
    backends: tuple[Text, ...] = ()
    served_by: dict[str, Scalar]
    served_model: Text = ""
    weights: Text = "1 : 1 : 1"
    weights_from: Annotated[str, one_of(WEIGHTS_FROM)] = DECLARED
    idle: Annotated[str, one_of(IDLE_RULES)] = BY_TOKENS
    # `idle` decides whether it is needed or refused
    reserved: dict[str, Annotated[Decimal, decimal(6, 1)]] = Field({}, validate_default=True)
    mode: Annotated[str, one_of(MODES)] = SHOWBACK
    claims: Annotated[str, one_of(CLAIMS)] = SHOWN

    value_type = SharedServer
    identity = ("name",)
    conflict = ("name", "line {line} declares this server for some of these days already")

    @field_validator("models", "backends")
    @classmethod
    def _list_patterns(cls, patterns: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        return _check_patterns(patterns, is_needed=info.field_name == "models")

    @field_validator("served_by")
    @classmethod
    def _match_something(cls, served_by: dict[str, str]) -> dict[str, str]:
        if not served_by:
            raise refusal("empty", "matches every workload; name its tags or its namespace and pod")
        if where := sorted(_PLACES & served_by.keys()):
            raise refusal(
                "bad_match",
                f"names a {where[0]}, and a server is known by what it is, not by where it runs:"
                " name tags, or kind, name, job, queue, user or account",
            )
        return served_by

    @field_validator("weights")
    @classmethod
    def _weigh_tokens(cls, weights: str) -> str:
        try:
            parse_weights(weights)
        except ValueError as error:
            raise refusal("bad_weights", str(error)) from None
        return " : ".join(f"{Decimal(part.strip()).normalize():f}" for part in weights.split(":"))

    @field_validator("weights_from")
    @classmethod
    def _weigh_input(cls, weights_from: str, info: ValidationInfo) -> str:
        weights = info.data.get("weights")
        if weights_from == GPU_SECONDS and weights and not parse_weights(weights).input:
            raise refusal(
                "bad_weights",
                "says what an output token takes over an input token, which must weigh something",
            )
        return weights_from

    @field_validator("reserved")
    @classmethod
    def _belong_to_reservations(
        cls, reserved: dict[str, Decimal], info: ValidationInfo
    ) -> dict[str, Decimal]:
        rule = info.data.get("idle")
        if rule == BY_RESERVATIONS and not any(reserved.values()):
            raise refusal("empty", "gives no tenant a share, such as { team-vision = 0.5 }")
        if rule not in {BY_RESERVATIONS, None} and reserved:
            raise refusal("not_reserved", f'belongs to idle = "{BY_RESERVATIONS}"')
        if sum(reserved.values()) > 1:
            raise refusal("too_much", "gives tenants more than the whole server")
        return reserved

    def to_value(self, source: str, position: int) -> Any:
        """The server, with its lists as texts."""
        del source, position
        fields = dict(vars(self)) | {
            "models": ", ".join(self.models),
            "backends": ", ".join(self.backends),
            "reserved": {name: f"{share.normalize():f}" for name, share in self.reserved.items()},
            "claims": "" if self.claims == SHOWN else self.claims,
            "weights_from": "" if self.weights_from == DECLARED else self.weights_from,
        }
        return SharedServer(**fields)

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """The declaration of a server that is in force."""
        fields = {name: getattr(value, name) for name in cls.model_fields}
        return cls.model_construct(
            **fields
            | {
                "models": split_patterns(value.models),
                "backends": split_patterns(value.backends),
                "reserved": {name: Decimal(share) for name, share in value.reserved.items()},
                "claims": value.claims or SHOWN,
                "weights_from": value.weights_from or DECLARED,
            }
        )


class DeclaredTenant(Dated):
    """Who pays for a tenant of a gateway."""

    gateway: Text = ""
    tenant: Text
    owner: dict[str, Text]

    value_type = TenantOwner
    identity = ("gateway", "tenant")
    conflict = ("tenant", "line {line} gives this tenant an owner for some of these days already")

    @field_validator("owner")
    @classmethod
    def _name_an_owner(cls, owner: dict[str, str]) -> dict[str, str]:
        for level, name in owner.items():
            check_level(level)
            if is_reserved(read_text(name)):
                raise refusal("reserved_name", reserved_message(name))
        if not owner or not all(owner.values()):
            raise refusal("bad_table", 'must name an owner, such as { team = "vision" }')
        return owner


class DeclaredApiPrice(Dated):
    """What an API charges for a million tokens of models that it could answer."""

    name: Text
    models: tuple[Text, ...]
    input: Rate
    cached: Rate
    output: Rate
    currency: Currency

    value_type = ApiPrice
    identity = ("name",)
    conflict = ("name", "line {line} declares this price for some of these days already")

    @field_validator("models")
    @classmethod
    def _list_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        return _check_patterns(patterns, is_needed=True)

    def to_value(self, source: str, position: int) -> Any:
        """The price, with its models as a text."""
        del source, position
        return ApiPrice(**dict(vars(self)) | {"models": ", ".join(self.models)})

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """The declaration of a price that is in force."""
        fields = {name: getattr(value, name) for name in cls.model_fields}
        return cls.model_construct(**fields | {"models": split_patterns(value.models)})
