"""Who asked shared model servers, and what a million of their tokens cost."""

from __future__ import annotations

from dashboards.grafana import (
    COUNT,
    EXACT,
    GREEN,
    MODEL_WIDTH,
    MONEY,
    ORANGE,
    RATIO,
    VERMILION,
    Board,
    chosen,
    column,
    name_colors,
    series,
    stat,
    table,
)
from dashboards.sql import (
    CURRENCY,
    DAY_TIME,
    DAYS,
    MICRO,
    TOKEN_PRICES,
    WHO_ASKED,
    currency,
    datasource,
    date,
    in_choice,
    in_range,
    mark_names,
    midnight_utc,
    other_currencies,
)

SERVERS = in_choice("l.server", "server")
SPLIT = f"{DAYS} AND {SERVERS}"
PRICED = f"{SPLIT} AND {CURRENCY}"
IDLE_STEPS = ((None, GREEN), (0.25, ORANGE), (0.5, VERMILION))
COVERAGE_STEPS = ((None, VERMILION), (0.8, ORANGE), (0.95, GREEN))
TENANT = "coalesce(nullif(a.tenant, ''), '(unattributed)')"
SERVER_NAMES = "SELECT l.server AS name, min(l.day_ms) AS first FROM inference_day l GROUP BY 1"
COVERAGE = """sum(l.asked) FILTER (WHERE l.counted IS NOT NULL)
    / nullif(sum(l.counted), 0)"""
STORED = "Split every 15 minutes; days not declared as [[inference]] are not in it."
PRICE_COLUMNS = tuple(
    f"{kind}, {cost}" for kind in ("input", "cached", "output") for cost in ("held", "used")
)

BOARD = Board(
    "gpuledger-models",
    "Models",
    "who asked model servers, and what does a million tokens cost?",
    "Shared model servers: what a million of their tokens cost, how much of that is idle time, and"
    " who asked.",
    (
        datasource(),
        currency(),
        chosen(
            "server",
            "Server",
            f"SELECT DISTINCT l.server FROM inference_day l WHERE {DAYS} ORDER BY 1",
        ),
    ),
    (
        (
            "The range",
            (
                stat(
                    "Cost of model servers ($currency)",
                    f"What the chosen servers were charged. {STORED}",
                    f"SELECT sum(l.cost_micro) / {MICRO} AS cost FROM inference_day l WHERE {PRICED}",
                    MONEY,
                    width=5,
                    decimals=0,
                ),
                stat(
                    "Idle share of the cost",
                    "Cost of the time in which GPUs of the chosen servers were idle, over all cost.",
                    "SELECT 1 - sum(l.used_micro) / nullif(sum(l.cost_micro), 0) AS part"
                    f" FROM inference_day l WHERE {PRICED}",
                    RATIO,
                    width=5,
                    decimals=1,
                    steps=IDLE_STEPS,
                    limits=(0, 1),
                ),
                stat(
                    "Tokens a gateway knows",
                    "Tokens of gateways over those of the servers, on days on which both are known;"
                    " what is missing went past the gateway.",
                    f"SELECT {COVERAGE} AS part FROM inference_day l WHERE {SPLIT}",
                    RATIO,
                    width=5,
                    decimals=1,
                    steps=COVERAGE_STEPS,
                ),
                stat(
                    "Tenants who asked",
                    "Tenants of gateways with tokens in the range, of all servers.",
                    "SELECT nullif(count(DISTINCT (a.gateway, a.tenant)), 0) AS tenants FROM token_hour h JOIN"
                    f" token_asker a ON a.id = h.asker_id WHERE {in_range('h.hour_ms')}",
                    COUNT,
                    width=4,
                    decimals=0,
                ),
                other_currencies(SPLIT, 5, "inference_day l"),
                table(
                    "A million tokens, by server ($currency)",
                    "Held: all that the server cost; used: without idle time. Where weights changed"
                    " in the range, the mean of its days by tokens; empty where nothing was counted.",
                    TOKEN_PRICES.format(where=PRICED, coverage=COVERAGE),
                    EXACT,
                    width=24,
                    height=6,
                    decimals=3,
                    overrides=(
                        column("server", unit="string"),
                        column("cost", unit=MONEY, decimals=0),
                        column("weights", unit="string"),
                        column(
                            "idle share",
                            unit=RATIO,
                            decimals=1,
                            cell="color-text",
                            steps=IDLE_STEPS,
                        ),
                        column(
                            "coverage",
                            unit=RATIO,
                            decimals=1,
                            cell="color-text",
                            steps=COVERAGE_STEPS,
                        ),
                    ),
                ),
                table(
                    "Who asked, most tokens first",
                    "Tokens and requests as gateways counted them, of all servers; what each pays"
                    " says the page Models of the collector.",
                    WHO_ASKED.format(tenant=TENANT, where=in_range("h.hour_ms")),
                    COUNT,
                    width=24,
                    height=8,
                    decimals=0,
                    overrides=(
                        column("model", unit="string", width=MODEL_WIDTH),
                        *(column(name, unit="string") for name in ("tenant", "gateway")),
                        column("share of tokens", unit=RATIO, decimals=1),
                        column("trust", unit="string"),
                    ),
                ),
            ),
        ),
        (
            "By day",
            (
                series(
                    "Cost a day, used and idle ($currency)",
                    "What the chosen servers were charged, by what their GPUs did; time of unknown"
                    " activity is in busy.",
                    f"""
                    SELECT {DAY_TIME}, s.name AS metric, sum(s.micro) / {MICRO} AS cost
                    FROM inference_day l, LATERAL (VALUES ('busy', l.used_micro),
                        ('idle', l.cost_micro - l.used_micro)) s (name, micro)
                    WHERE {PRICED} GROUP BY 1, 2 ORDER BY 1, 2
                    """,
                    MONEY,
                    bars=True,
                    stacked=True,
                    interval="1d",
                    decimals=0,
                    order=("busy", "idle"),
                ),
                series(
                    "A million input tokens at held cost, by day ($currency)",
                    "All cost of a day over its weighted tokens; a day without tokens has no price.",
                    mark_names(
                        f"""
                        SELECT {DAY_TIME}, l.server AS metric, sum(l.cost_micro
                            * split_part(l.weights, ':', 1)::numeric * 1e6 / nullif(l.weighted, 0)) AS price
                        FROM inference_day l WHERE {PRICED} GROUP BY 1, 2
                        """,
                        SERVER_NAMES,
                        "price",
                    ),
                    EXACT,
                    interval="1d",
                    decimals=3,
                    overrides=name_colors(),
                ),
                series(
                    "Tokens a day, by tenant",
                    "Input and output tokens as gateways counted them, of all servers, by days of"
                    " the billing zone: the nine largest tenants and all others.",
                    f"""
                    WITH day AS (
                        SELECT {date("h.hour_ms")} AS day, {TENANT} AS tenant, sum(h.input + h.output) AS tokens
                        FROM token_hour h JOIN token_asker a ON a.id = h.asker_id
                        WHERE {in_range("h.hour_ms")} GROUP BY 1, 2
                    ), largest AS (
                        SELECT tenant FROM day GROUP BY 1 ORDER BY sum(tokens) DESC, 1 LIMIT 9
                    )
                    SELECT {midnight_utc("day.day")} AS "time", CASE WHEN largest.tenant IS NULL
                        THEN 'all others' ELSE day.tenant END AS metric, sum(day.tokens) AS tokens
                    FROM day LEFT JOIN largest USING (tenant) GROUP BY 1, 2 ORDER BY 1, 2
                    """,
                    COUNT,
                    width=24,
                    bars=True,
                    stacked=True,
                    interval="1d",
                    decimals=0,
                ),
            ),
        ),
    ),
)
