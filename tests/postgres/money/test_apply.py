"""gpuledger apply: rules and prices declared in a file; and samples from recordings."""

import json
import threading

import psycopg

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from fakes.replicas import until
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.locks import Lock

RULES = """
[[rule]]
name = "accounts"
match = { account = "ml-*" }
assign = { team = "{account}", org = "acme" }

[[rule]]
match = { pool = "eu" }
assign = { project = "europe" }
effective_from = 2025-10-02T00:00:00Z

[[price]]
pool = ""
gpu_model = "H100"
purchase = "on_demand"
rate_per_gpu_hour = 2.123456789
currency = "USD"
effective_from = 2025-01-01
"""
OCT = ("--from", "2025-10-01", "--to", "2025-10-04", "--by", "org,team,project", "--format", "json")


def owners(run) -> set[tuple[str, str, str]]:
    rows = json.loads(run("chargeback", *OCT)[1])["rows"]
    return {
        (row["org"], row["team"], row["project"]) for row in rows if row["gpu_hours"] == "1.000000"
    }


def test_rules_apply_from_their_dates_and_rate_again(fleet, run, written) -> None:
    """Applied rules change who bears what is already rated; the same file again changes nothing."""
    fleet.capacity(1, 0, 3 * DAY, pool="eu")
    fleet.workload(1, team="own")
    fleet.connection.execute("UPDATE workload SET account = 'ml-nlp'")
    fleet.evidence([Held(1, 1, day * DAY, day * DAY + HOUR) for day in range(2)])
    run("prices", "set", "--rate", "1", "--currency", "USD", "--from", "2024-01-01")
    un = "(unattributed)"
    assert '"own"' in run("chargeback", *OCT)[1]
    path = written("ledger.toml", RULES)
    code, out, err = run("apply", path, "--dry-run")
    assert (code, err) == (0, "")
    assert "rules: 2 added" in out
    assert fleet.rows("SELECT * FROM attribution_rule") == []
    assert run("apply", path)[0] == 0
    assert owners(run) == {("acme", "ml-nlp", un), ("acme", "ml-nlp", "europe")}
    _, out, _ = run("apply", path)
    assert out.splitlines() == [
        "prices: 0 added, 0 superseded, 1 unchanged; no bill changes",
        "rules: 0 added, 0 superseded, 2 unchanged; no bill changes",
    ]
    assert (
        str(fleet.rows("SELECT rate_per_gpu_hour FROM price WHERE gpu_model = 'H100'")[0][0])
        == "2.123456789"
    )
    checked = run("tags", "check", "--from", "2025-10-01", "--to", "2025-10-03")[1]
    assert "1 accounts: 1 workload, 2.000 GPU-hours" in checked


def test_it_waits_for_a_close_without_standing_in_its_way(fleet, run, written, dsn) -> None:
    """A close holds the ledger and wants the audit log: whoever waits for the ledger must not hold
    that log.
    """
    shared = (
        '[[shared_cost]]\nname = "support"\namount_per_month = 5\ncurrency = "USD"\nkey = "cost"\n'
    )
    path, codes = written("ledger.toml", RULES + shared), []
    with psycopg.connect(dsn) as closing:
        locks.take(closing, Lock.LEDGER)
        applying = threading.Thread(target=lambda: codes.append(run("apply", path)[0]))
        applying.start()
        try:
            until(
                lambda: fleet.rows(
                    "SELECT FROM pg_locks WHERE relation = 'lock_ledger'::regclass AND NOT granted"
                )
            )
            closing.execute(f"{locks.statement(Lock.AUDIT)} NOWAIT")
        finally:
            closing.rollback()
            applying.join(60)
    assert codes == [0]
    assert fleet.rows("SELECT name FROM shared_cost") == [("support",)]


def test_only_what_the_file_declares_is_told(run, written, fleet) -> None:
    """A file without prices says nothing of prices, and one without anything that it changed
    nothing.
    """
    rules = RULES[: RULES.index("[[price]]")]
    assert run("apply", written("rules.toml", rules))[1].startswith("rules: 2 added")
    code, out, _ = run("apply", written("empty.toml", "# later\n"))
    assert (code, out.endswith("declares nothing: nothing was changed\n")) == (0, True)


def test_every_mistake_is_named_with_its_line(run, written, fleet) -> None:
    """Unknown keys and levels name the nearest, bad values their line; nothing is applied."""
    text = RULES.replace("[[price]]", "[[price]]\ncolor = 1").replace("org =", "orgg =")
    text = text.replace("2025-01-01", "2025-01-01T00:00:00").replace(
        "match = { pool", "mach = { pool"
    )
    path = written("ledger.toml", text + "[rules]\n")
    code, _, err = run("apply", path)
    assert code == 2
    places = [line.removeprefix(f"{path}:").split(": ")[0] for line in err.splitlines()[:-1]]
    assert places == ["rules", "2:assign", "7:mach", "12:color", "12:effective_from"]
    assert "is it 'org'?" in err
    assert "is it 'match'?" in err
    assert fleet.rows("SELECT * FROM price") == []
    broken = written("broken.toml", "[[rule]\n")
    code, _, err = run("apply", broken)
    assert code == 2
    assert "broken.toml:1:" in err


def test_a_recording_is_imported_from_the_start_that_is_said(run, written, fleet) -> None:
    """An agent's recording counts from its start: without --start it is refused, with it its ticks
    have instants.
    """
    lines = [
        {
            "format": "gpuledger-recording/1",
            "node": "n",
            "driver": "1",
            "accelerators": [],
            "problems": [],
        },
        {"offset_ms": 0, "samples": [{"uuid": "GPU-1", "values": {"gpu_utilization_ratio": 0.5}}]},
        {
            "offset_ms": 1500,
            "samples": [{"uuid": "GPU-1", "values": {"gpu_power_watts": 70.0}, "absent": {}}],
        },
    ]
    path = written("r.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    code, _, err = run("import", "samples", path)
    assert code == 2
    assert "r.jsonl:2:offset_ms: is counted from the start" in err
    assert run("import", "samples", path, "--start", "2025-10-01T00:00:00Z")[0] == 0
    rows = fleet.rows(
        "SELECT at_ms, gpu_utilization_ratio, gpu_power_watts FROM gpu_sample ORDER BY 1"
    )
    assert rows == [(OCTOBER, 0.5, None), (OCTOBER + 1500, None, 70.0)]


def test_bad_samples_are_all_named(run, written, fleet) -> None:
    """Bad instants, numbers and JSON are named with line and column, and nothing is imported."""
    path = written(
        "s.csv",
        "ts,uuid,gpu_power_watts\nx,G,1\n1759276800,,1\n1759276800,G,hot\n1759276800,G,inf\n",
    )
    code, _, err = run("import", "samples", path)
    assert code == 2
    places = [line.removeprefix(f"{path}:").split(": ")[0] for line in err.splitlines()[:-1]]
    assert places == ["2:ts", "3:uuid", "4:gpu_power_watts", "5:gpu_power_watts"]
    path = written(
        "s.jsonl", '{"uuid": "G", "ts": 1759276800, "values": {"gpu_power_watts": 1}}\n{"uuid"\n'
    )
    code, _, err = run("import", "samples", path)
    assert code == 2
    assert "s.jsonl:2: is not JSON" in err
    assert fleet.rows("SELECT * FROM gpu_sample") == []
