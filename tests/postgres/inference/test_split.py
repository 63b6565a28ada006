"""From tokens of a gateway and a rated server to what each tenant pays, by command."""

import json

import pytest

from fakes.fleet import DAY, HOUR, Held
from fakes.shared_server import (
    DECLARED,
    KEY,
    MODEL,
    NLP,
    PERIOD,
    VISION,
    ask,
    costs,
    count,
    notes,
    rows,
)
from gpuledger_collector.accounting.inference import CLAIM, Asker
from gpuledger_collector.services import inference_costs
from gpuledger_collector.storage.billing import periods, sealed_tables

pytestmark = pytest.mark.slow


def test_tenants_pay_by_weighted_tokens(served, run, apply):
    """Of 1,000 weighted tokens vision has 600, nlp 300 and a key without a team 100."""
    ask(served, (VISION, 1, 300, 0, 75), (NLP, 2, 400, 200, 20), (KEY, 3, 100, 0, 0))
    assert apply(DECLARED)[0] == 0
    # nlp: 200 computed + 20 cached + 80 of output = 300.
    assert costs(run) == {"t-vision": "43.20", "t-nlp": "21.60", "(unattributed)": "7.20"}
    by_owner = {row["owner"]: row["cost"] for row in rows(run, "--by", "owner")}
    assert by_owner == {
        "team=vision": "43.20",
        "team=nlp project=chat": "21.60",
        "(unattributed)": "7.20",
    }
    (server,) = rows(run, command="servers")
    assert (server["cost"], server["cost_used"], server["coverage"]) == ("72.00", "36.00", "")
    # 72 USD over 1,000 weighted tokens: a million of input cost 72,000.
    assert server["input_price_held"] == "72000.000000"
    assert server["output_price_used"] == "144000.000000"


def test_the_bill_does_not_change(served, run, apply):
    before = run("chargeback", *PERIOD, "--by", "team,workload", "--format", "csv")
    ask(served, (VISION, 1, 300, 0, 75))
    assert apply(DECLARED)[0] == 0
    assert run("chargeback", *PERIOD, "--by", "team,workload", "--format", "csv") == before
    assert costs(run) == {"t-vision": "72.00"}
    assert run("chargeback", *PERIOD, "--by", "team,workload", "--format", "csv") == before


def test_what_nodes_cost_in_another_currency_is_divided_by_what_gpus_did(served, run, apply):
    """Ten node-hours at 1 EUR beside 72 USD of time, half of it idle."""
    ask(served, (VISION, 1, 300, 0, 0))
    node = '\n[[node_cost]]\nname = "cpu"\nprice_per_node_hour = 1\ncurrency = "EUR"\n'
    declared = DECLARED.replace("weights =", 'idle = "platform"\nweights =')
    assert apply(declared + node)[0] == 0
    cost = {(row["tenant"], row["currency"]): row["cost"] for row in rows(run, "--by", "tenant")}
    assert cost["t-vision", "USD"] == cost["(idle)", "USD"] == "36.00"
    assert cost["t-vision", "EUR"] == cost["(idle)", "EUR"] != ""


def test_a_day_is_split_alike_whatever_period_is_asked_for(served, run, apply):
    """Another workload of the server counts tokens on the first day, and is charged on the second."""
    served.workload(2, app="qwen", team="platform")
    for number in (1, 2):
        served.capacity(number, DAY, 2 * DAY)
    served.evidence([Held(1, 2, DAY, DAY + HOUR, busy=HOUR, idle=0)])
    count(served, 400, 0)
    count(served, 5_000, 0, workload=2)
    ask(served, (VISION, 1, 300, 0, 0))
    assert apply(DECLARED)[0] == 0
    expected = [("t-vision", "54.00"), ("(nobody)", "18.00")]
    for last in ("2025-10-02", "2025-10-03"):
        period = ("--from", "2025-10-01", "--to", last)
        lines = rows(run, "--by", "day,tenant", period=period)
        first = [(row["tenant"], row["cost"]) for row in lines if row["day"] == "2025-10-01"]
        assert first == expected, last


def test_tokens_that_only_the_server_saw_are_nobodys(served, run, apply):
    count(served, 600, 100)
    ask(served, (VISION, 1, 300, 0, 50))
    assert apply(DECLARED)[0] == 0
    assert costs(run) == {"t-vision": "36.00", "(nobody)": "36.00"}
    (server,) = rows(run, command="servers")
    assert server["coverage"] == "0.5000"
    assert (server["server_input_tokens"], server["server_output_tokens"]) == ("600", "100")


def test_a_gateway_above_its_server_is_scaled_down_and_said(served, run, apply):
    count(served, 200, 0)
    ask(served, (VISION, 1, 300, 0, 0), (NLP, 1, 100, 0, 0))
    assert apply(DECLARED)[0] == 0
    assert costs(run) == {"t-vision": "54.00", "t-nlp": "18.00"}
    (server,) = rows(run, command="servers")
    assert server["scaled_days"] == "1"
    assert "scaled down" in notes(run)


def test_idle_stays_with_the_platform_where_it_is_declared(served, run, apply):
    ask(served, (VISION, 1, 300, 0, 0))
    assert apply(DECLARED.replace("weights =", 'idle = "platform"\nweights ='))[0] == 0
    assert costs(run) == {"t-vision": "36.00", "(idle)": "36.00"}
    (server,) = rows(run, command="servers")
    assert server["cost_platform"] == "36.00"


def test_reservations_are_paid_for_and_lent(served, run, apply):
    ask(served, (VISION, 1, 300, 0, 0))
    reserved = 'idle = "reservations"\nreserved = { t-vision = 0.25, t-nlp = 0.75 }\nweights ='
    assert apply(DECLARED.replace("weights =", reserved))[0] == 0
    lines = {row["tenant"]: row for row in rows(run, "--by", "tenant")}
    assert lines["t-vision"]["cost"] == "36.00"
    assert lines["t-vision"]["cost_borrowed"] == "18.00"
    assert lines["t-nlp"]["cost"] == "36.00"
    assert lines["t-nlp"]["cost_lent"] == "18.00"


def test_the_tenant_of_a_reservation_has_its_owner_on_days_without_a_token(served, run, apply):
    reserved = 'idle = "reservations"\nreserved = { t-vision = 0.25, t-nlp = 0.75 }\nweights ='
    declared = DECLARED.replace("weights =", reserved)
    expected = {"team=vision": "9.00", "team=nlp project=chat": "27.00", "(nobody)": "36.00"}
    for text in (declared, declared.replace('gateway = "litellm"', "", 1)):
        assert apply(text)[0] == 0
        assert {row["owner"]: row["cost"] for row in rows(run, "--by", "owner")} == expected


@pytest.mark.parametrize("name", ["(other)", "tag:(other)"])
def test_what_overflowed_can_be_given_an_owner_and_a_share(served, run, apply, name):
    ask(served, (Asker("litellm", "(other)", MODEL), 1, 300, 0, 0))
    reserved = f'idle = "reservations"\nreserved = {{ "{name}" = 1 }}\nweights ='
    declared = DECLARED.replace("weights =", reserved).replace('"t-nlp"', f'"{name}"')
    assert apply(declared)[0] == 0
    (row,) = rows(run, "--by", "tenant,owner")
    assert (row["tenant"], row["owner"]) == ("tag:(other)", "team=nlp project=chat")
    assert (row["cost"], row["cost_idle"]) == ("72.00", "36.00")


def test_what_matches_no_server_or_two_moves_nothing_and_is_said(served, run, apply):
    stray = Asker("litellm", "t-nlp", "gpt-oss", "http://10.0.0.9:8000/v1")
    ask(served, (VISION, 1, 300, 0, 0), (stray, 1, 900, 0, 0))
    second = """
[[inference]]
name = "copy"
models = ["hosted_vllm/Qwen3-3*"]
served_by = { app = "other" }
"""
    assert apply(DECLARED)[0] == 0
    assert costs(run) == {"t-vision": "72.00"}
    assert "litellm: gpt-oss at http://10.0.0.9:8000/v1: 900 tokens match no" in notes(run)
    assert apply(DECLARED + second)[0] == 0
    assert costs(run) == {"(nobody)": "36.00", "(idle)": "36.00"}
    said = notes(run)
    assert "matches copy and qwen" in said
    assert "copy: no workload that was charged matches" in said


def test_a_workload_of_two_servers_is_split_among_nobody(served, run, apply):
    ask(served, (VISION, 1, 300, 0, 0))
    second = '\n[[inference]]\nname = "copy"\nmodels = ["other"]\nserved_by = { app = "q*" }\n'
    assert apply(DECLARED + second)[0] == 0
    assert costs(run) == {"t-vision": ""}
    assert "slurm::1: is a workload of copy and qwen" in notes(run)


def test_the_model_of_the_counters_chooses_the_server(served, run, apply):
    ask(served, (VISION, 1, 300, 0, 0))
    declared = DECLARED.replace("weights =", 'served_model = "Qwen3-32B"\nweights =')
    assert apply(declared)[0] == 0
    assert costs(run) == {"t-vision": ""}
    # Of this model 400 tokens were counted: 100 that no gateway knows; those of another are not it.
    count(served, 400, 0)
    count(served, 5000, 0, part="engine=0,model_name=Qwen3-32B-other")
    assert costs(run) == {"t-vision": "54.00", "(nobody)": "18.00"}


@pytest.mark.parametrize(
    ("key", "tags"),
    [
        ("imported:import:alpha/4711@1760000000", "{}"),
        ("slurm:alpha:4711@1760000000", "{}"),
        ("slurm::4711", '{"job": "x"}'),
    ],
)
def test_the_id_of_the_scheduler_chooses_the_server(served, run, apply, key, tags):
    """As an agent or Slurm's accounting brought the job, and whatever its user calls it."""
    served.connection.execute("UPDATE workload SET key = %s, tags = %s", (key, tags))
    ask(served, (VISION, 1, 300, 0, 0))
    for job, cost in (("4711", "72.00"), ("x", "")):
        assert apply(DECLARED.replace('app = "qwen"', f'job = "{job}"'))[0] == 0
        assert costs(run) == {"t-vision": cost}


def test_claims_are_shown_as_claims(served, run, apply):
    ask(served, (Asker("litellm", "t-vision", MODEL, trust=CLAIM), 1, 300, 0, 0))
    assert apply(DECLARED)[0] == 0
    (row,) = rows(run)
    assert row["trust"] == "claim"


def test_nobody_pays_for_what_callers_claim_to_be(served, run, apply):
    ask(served, (Asker("litellm", "t-vision", MODEL, trust=CLAIM), 1, 300, 0, 0))
    assert apply(DECLARED)[0] == 0
    assert {row["owner"]: row["cost"] for row in rows(run, "--by", "owner")} == {
        "(unattributed)": "72.00"
    }
    assert "callers only claim to be t-vision" in notes(run)


def test_hours_add_up_to_their_day(served, run, apply):
    ask(served, (VISION, 1, 300, 0, 0), (VISION, 5, 500, 0, 3), (NLP, 2, 40, 0, 20))
    assert apply(DECLARED)[0] == 0
    code, out, _ = run("inference", "list", *PERIOD, "--by", "tenant,hour", "--format", "json")
    assert code == 0
    hours = json.loads(out)
    assert {row["hour"] for row in hours} > {"2025-10-01T01:00:00Z", "2025-10-01T05:00:00Z"}
    total = sum(int(row["cost"].replace(".", "")) for row in hours)
    assert total == 7200
    assert sum(int(row["input_tokens"]) for row in hours) == 840


def test_idle_cost_lies_in_the_hours_that_cost(served, run, apply):
    """Two GPUs in each of ten hours, and two more in the last of them, by another workload."""
    for number in (3, 4):
        served.capacity(number, 0, DAY)
    served.workload(2, app="qwen", team="platform")
    served.evidence(
        [Held(number, 2, 9 * HOUR, 10 * HOUR, busy=HOUR // 2, idle=HOUR // 2) for number in (3, 4)]
    )
    count(served, 600, 100)
    ask(served, (VISION, 12, 300, 0, 50))
    assert apply(DECLARED.replace("weights =", 'idle = "platform"\nweights ='))[0] == 0
    for tenant, first, last in (("(idle)", "3.60", "7.20"), ("(nobody)", "1.80", "3.60")):
        cost = {
            row["hour"][11:13]: row["cost"]
            for row in rows(run, "--by", "tenant,hour")
            if row["tenant"] == tenant
        }
        assert sorted(cost) == [f"{hour:02}" for hour in range(10)], tenant
        assert (cost["00"], cost["09"]) == (first, last), tenant


def test_hours_have_the_tokens_of_their_server_alone_and_those_of_nobody(served, run, apply):
    """One tenant asks two servers for one model, and a server counted more than its gateway."""
    count(served, 500, 100)
    elsewhere = Asker("litellm", "t-vision", MODEL, "http://10.0.0.9:8000/v1")
    ask(served, (VISION, 1, 300, 0, 0), (elsewhere, 2, 7_000, 0, 0))
    backends = 'backends = ["http://10.0.0.{}:*"]\nserved_by = {{ app = "{}" }}'
    declared = DECLARED.replace('served_by = { app = "qwen" }', backends.format(7, "qwen"))
    second = '[[inference]]\nname = "copy"\nmodels = ["hosted_vllm/*"]\n' + backends.format(9, "x")
    assert apply(declared + second)[0] == 0
    for key in ("day", "hour"):
        tokens = {}
        for row in rows(run, "--by", f"server,tenant,{key}"):
            name = row["server"], row["tenant"]
            before = tokens.get(name, (0, 0))
            tokens[name] = (
                before[0] + int(row["input_tokens"]),
                before[1] + int(row["output_tokens"]),
            )
        assert tokens == {
            ("copy", "t-vision"): (7_000, 0),
            ("qwen", "t-vision"): (300, 0),
            ("qwen", "(nobody)"): (200, 100),
        }


def test_hours_of_a_closed_month_are_refused(served, run, apply):
    """Evidence that came later would change them."""
    ask(served, (VISION, 1, 300, 0, 75))
    assert apply(DECLARED)[0] == 0
    assert run("close", "--period", "2025-10", "--allow-unpriced")[0] == 0
    code, out, err = run("inference", "list", "--period", "2025-10", "--by", "tenant,hour")
    assert (code, out) == (2, "")
    assert "2025-10: a closed month keeps how its days were split, and no hours" in err


def test_a_declaration_is_dated(served, run, apply):
    ask(served, (VISION, 1, 300, 0, 0))
    assert apply(DECLARED.replace("weights =", "effective_from = 2025-10-02\nweights ="))[0] == 0
    assert rows(run) == []
    assert rows(run, command="servers") == []


def test_declarations_are_exported_as_applied(served, run, apply, tmp_path):
    reserved = 'idle = "reservations"\nreserved = { t-vision = 0.25 }\nweights ='
    assert apply(DECLARED.replace("weights =", reserved))[0] == 0
    path = tmp_path / "export.toml"
    code, _, err = run("export", "config", "-o", path)
    assert code == 0, err
    text = path.read_text()
    assert 'weights = "1 : 0.1 : 4"' in text
    code, out, err = run("apply", path)
    assert code == 0, err
    assert "0 added" in out or "unchanged" in out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (('weights = "1 : 0.1 : 4"', 'weights = "1 : 2"'), "three weights"),
        (('weights = "1 : 0.1 : 4"', 'mode = "billed"'), "charged"),
        (('weights = "1 : 0.1 : 4"', "reserved = { t-nlp = 0.5 }"), "reservations"),
        (('served_by = { app = "qwen" }', "served_by = {}"), "every workload"),
        (('served_by = { app = "qwen" }', 'served_by = { pool = "train" }'), "names a pool"),
        (('owner = { team = "vision" }', 'owner = { squad = "vision" }'), "level"),
    ],
)
def test_bad_declarations_are_refused_with_a_sentence(run, apply, wrong, said):
    code, out, err = apply(DECLARED.replace(*wrong))
    assert code == 2
    assert said in out + err


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "Australia/Lord_Howe"])
def test_a_zone_whose_days_begin_within_an_hour_is_refused(served, run, apply, zone):
    """With the servers, before them and after them; until no server is declared any more."""
    declared = f'billing_zone = "{zone}"\n'

    def refused(text, key):
        code, out, err = apply(text)
        assert code == 2, out
        assert f"declared.toml:{key}: days of {zone} begin within an hour of UTC" in err
        assert "nothing was applied" in err

    refused(declared + DECLARED, "billing_zone")
    assert apply(declared)[0] == 0
    refused(DECLARED, "inference")
    assert apply('billing_zone = "Europe/Berlin"\n' + DECLARED)[0] == 0
    refused(declared, "billing_zone")
    assert costs(run) == {"(nobody)": "36.00", "(idle)": "36.00"}
    assert apply(declared + "inference = []\n")[0] == 0


def test_nothing_is_said_without_tokens_or_servers(served, run):
    assert rows(run) == []
    assert notes(run) == ""
    ask(served, (VISION, 1, 300, 0, 0))
    assert "declare [[inference]] tables" in notes(run)


def test_a_month_whose_close_kept_no_split_is_split_by_what_is_known_now(served, run, apply):
    ask(served, (VISION, 1, 300, 0, 0))
    code, out, err = run("close", "--period", "2025-10", "--allow-unpriced")
    assert code == 0, (out, err)
    assert apply(DECLARED)[0] == 0
    assert costs(run) == {"t-vision": "72.00"}
    assert "2025-10: its close kept no split of its servers" in notes(run)


def test_a_month_that_was_closed_with_nothing_to_split_stays(served, run, apply):
    """Its servers had no workload and no tokens: tokens that come later are not in it."""
    assert apply(DECLARED.replace('app = "qwen"', 'app = "other"'))[0] == 0
    month = ("--period", "2025-10")
    assert run("close", *month, "--allow-unpriced")[0] == 0
    ask(served, (VISION, 1, 300, 0, 75))
    assert rows(run) == []
    assert rows(run, command="servers") == []


def test_a_closed_month_stays(served, run, apply):
    """Evidence, tenants and weights that come after the close change nothing of it."""
    ask(served, (VISION, 1, 300, 0, 75), (NLP, 2, 400, 200, 20))
    assert apply(DECLARED)[0] == 0
    month = ("--period", "2025-10")
    code, out, err = run("close", *month, "--allow-unpriced")
    assert code == 0, (out, err)
    before = [
        run("inference", command, *month, "--format", form)
        for command in ("list", "servers")
        for form in ("table", "csv", "json")
    ]
    assert "43.20" in before[0][1] or "48.00" in before[0][1]
    ask(served, (KEY, 4, 10_000, 0, 0))
    assert apply(DECLARED.replace("1 : 0.1 : 4", "1 : 1 : 1").replace("chat", "talk"))[0] == 0
    after = [
        run("inference", command, *month, "--format", form)
        for command in ("list", "servers")
        for form in ("table", "csv", "json")
    ]
    assert after == before
    code, out, err = run("periods", "--verify", "2025-10")
    assert code == 0, (out, err)
    for change in (
        "UPDATE closed_inference SET used_micro = used_micro + 1",
        "UPDATE closed_inference_server SET counted_input = 1",
    ):
        with served.connection.transaction(force_rollback=True):
            served.connection.execute(change)
            assert _changed_tables(served.connection) == [change.split()[1]]


def test_a_month_with_more_cached_than_input_can_be_closed(served, run, apply):
    """Readings of a gateway whose input counters are missing a part, scaled down to the server."""
    count(served, 200, 0)
    ask(served, (VISION, 1, 300, 0, 0), (NLP, 2, 100, 0, 0))
    served.connection.execute("UPDATE token_hour SET cached = 400")
    assert apply(DECLARED)[0] == 0
    assert costs(run) == {"t-vision": "54.00", "t-nlp": "18.00"}
    code, out, err = run("close", "--period", "2025-10", "--allow-unpriced")
    assert code == 0, (out, err)


def test_a_dry_close_fails_where_the_close_would(served, run, apply, monkeypatch):
    ask(served, (VISION, 1, 300, 0, 75))
    assert apply(DECLARED)[0] == 0
    month = ("--period", "2025-10", "--allow-unpriced")
    assert run("close", *month, "--dry-run")[0] == 0
    assert served.rows("SELECT count(*) FROM closed_inference") == [(0,)]

    def fail(*_):
        raise ValueError("cannot be split")

    monkeypatch.setattr(inference_costs, "split_period", fail)
    assert "cannot be split" in str(run("close", *month, "--dry-run"))


def _changed_tables(connection):
    (closed,) = periods.list_closed(connection)
    return list(sealed_tables.compare(connection, closed).changed)
