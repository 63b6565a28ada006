"""gpuledger export config: what is applied comes out as a file that apply takes back unchanged."""

import tomllib

from gpuledger_collector.config.declared import TABLES
from gpuledger_collector.storage.ledger import zones

CONFIG = """
billing_zone = "Asia/Kolkata"

[[rule]]
name = 'a "quoted" \\ name, naïve 🙂'
match = { account = "ml-*", "tag with blanks" = "x" }
assign = { team = "{account}", org = "acme" }
effective_from = 2025-10-02T00:00:00.123Z

[[rule]]
match = { pool = "eu" }
assign = { project = "europe" }

[[price]]
pool = ""
gpu_model = "H100"
purchase = "on_demand"
rate_per_gpu_hour = 2.123456789
currency = "USD"
effective_from = 2025-01-01
effective_to = 2027-01-01
list_rate = 3.10

[[commitment]]
name = "three years"
gpus = 4
upfront = 1200.000001
rate_per_gpu_hour = 0.85
currency = "USD"
starts = 2026-01-01
ends = 2029-01-01

[[purchase]]
pool = "preemptible"
purchase = "spot"
tags = { qos = "preempt*" }

[[exchange]]
from = "USD"
to = "EUR"
rate = 0.92
effective_from = 2026-10-01

[[budget]]
name = "vision"
team = "vision"
period = "month"
amount = 40000.5
currency = "USD"
actual = [80, 100]
forecast = []
pace = 200
recipients = ["lead@example.com"]
escalate_to = ["boss@example.com"]
escalate_after_hours = 4
quiet = "22:00-07:00"

[[budget]]
name = "a range"
period = "range"
from = 2026-10-01
to = 2026-10-08
amount = 1
currency = "JPY"

[[node_cost]]
name = "CPU and memory"
pool = "eu"
node = "dgx-*"
price_per_core_hour = 0.011
cores = 128
price_per_gb_hour = 0.000000001
memory_gb = 2048
price_per_node_hour = 0.35
currency = "EUR"
effective_from = 2026-10-01
effective_to = 2027-01-01

[[shared_cost]]
name = "support"
amount_per_month = 1200.50
currency = "USD"
key = "cost"
effective_from = 2026-01-01

[[shared_cost]]
name = "idle"
source = "unallocated"
pool = "eu"
key = "weights"
level = "project"
weights = { "a b" = 60, nlp = 40 }
scope = { org = "acme" }
effective_to = 2027-01-01

[[carbon]]
region = "eu-north"
pool = "eu"
grams_per_kwh = 24.5
pue = 1.15
effective_from = 2026-01-01

[[carbon]]
grams_per_kwh = 400

[[recipient]]
address = "lead@example.com"
digest = "weekly"
digest_at = "09:30"
digest_on = "tue"
zone = "Europe/Berlin"
max_per_day = 5
pass = ["budget"]

[[contact]]
user = "*"
address = "{user}@example.com"

[[contact]]
team = "vision"
leads = ["lead@example.com"]
summary = false

[[anomaly_floor]]
currency = "USD"
amount = 50

[[anomaly_floor]]
currency = "EUR"
amount = 45.5

[[action]]
name = "vision gives back"
team = "vision"
do = "scancel"

[[pool]]
name = "train"
min_gpus = 16
utilization = 0.7
predict = false

[[pool]]
name = "serve"
headroom = 0.1
money_per_hour = 240.25
currency = "USD"
"""


def test_it_goes_round_and_changes_nothing(run, written, fleet) -> None:
    """Applied, written, applied again: nothing is added or superseded, and the file comes out the
    same.
    """
    code, out, err = run("apply", written("ledger.toml", CONFIG))
    assert (code, err) == (0, "")
    assert "0 added, 0 superseded" not in out.replace("owned", "")
    code, first, err = run("export", "config")
    assert (code, err) == (0, "")
    said = run("apply", written("again.toml", first))[1].splitlines()
    assert len(said) == len(tomllib.loads(first))
    assert [line for line in said if "0 added, 0 superseded" not in line] == []
    assert run("export", "config")[1] == first
    given, made = tomllib.loads(CONFIG), tomllib.loads(first)
    assert {name: len(made[name]) for name in given} == {
        name: len(one) for name, one in given.items()
    }
    for name, tables in given.items():
        if name != "billing_zone":
            said, kept = (
                {key for one in each for key in one if one[key] != ""}
                for each in (tables, made[name])
            )
            assert said <= kept, f"[[{name}]] loses {sorted(said - kept)}"
    assert made["shared_cost"][0]["weights"] == {"a b": 60, "nlp": 40}
    assert zones.zone_in_force(fleet.connection) == "Asia/Kolkata"


def test_an_empty_ledger_says_so(run, written, fleet) -> None:
    """Of nothing comes a file of nothing, which empties what it is applied to."""
    code, nothing, _ = run("export", "config")
    assert code == 0
    empty = tomllib.loads(nothing)
    assert empty.pop("billing_zone") == "UTC"
    assert not any(empty.values())
    assert {"billing_zone", *empty} == set(TABLES) - {"owned", "fiscal_year_begins"}, (
        "every table of a file"
    )
    run("apply", written("ledger.toml", CONFIG))
    run("apply", written("nothing.toml", nothing))
    left = tomllib.loads(run("export", "config")[1])
    assert [name for name, tables in left.items() if tables and name != "price"] == ["billing_zone"]
    assert left["billing_zone"] == "UTC"


def test_mistakes_in_shared_costs_and_carbon_are_named(run, written, fleet) -> None:
    """Each with its line and key; nothing is applied."""
    text = """billing_zone = "Europe/Atlantis"
[[shared_cost]]
name = "a"
key = "coat"
amount_per_month = 0
currency = "usd"
[[shared_cost]]
name = "b"
source = "unallocated"
key = "weights"
amount_per_month = 5
scope = { tram = "x" }
[[carbon]]
pue = 0.9
effective_from = 2026-13-01
"""
    code, _, err = run("apply", written("bad.toml", text.replace("2026-13-01", '"soon"')))
    assert code == 2
    places = {line.partition("bad.toml:")[2].partition(": ")[0] for line in err.splitlines()[:-1]}
    assert places == {
        "billing_zone",
        "2:key",
        "2:amount_per_month",
        "2:currency",
        "7:weights",
        "7:amount_per_month",
        "7:scope",
        "13:pue",
        "13:grams_per_kwh",
        "13:effective_from",
    }
    assert fleet.rows("SELECT * FROM shared_cost") == []
