"""Letters as people get them: golden files, text and HTML that tell the same, and names that cannot
break out.
"""

from __future__ import annotations

import email
import email.policy
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, parse_date, parse_instant
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.export import site
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.notifications.delivery_rules import Digest, DigestEntry
from gpuledger_collector.insight.notifications.finding_rules import (
    AnomalyNotice,
    IdleAccelerator,
    IdleNotice,
    IdleWeek,
    IdleWorkload,
    Section,
    SpendingWeek,
    WastedUsage,
    WeeklySummary,
    reclaim_command,
)
from gpuledger_collector.insight.notifications.messages import Content, Message
from gpuledger_collector.insight.notifications.reclaim_rules import ReclaimAction
from gpuledger_collector.notifications import digest_mail, spending_week_mail
from gpuledger_collector.notifications import finding_mail as finding_mail
from gpuledger_collector.notifications.links import AckLinks, PageLinks
from gpuledger_collector.notifications.mime import compose

GOLDEN = Path(__file__).parent / "golden"
PAGES = PageLinks("https://gpuledger.example.com/")
LINKS = AckLinks("https://gpuledger.example.com/", b"k" * 32)
SINCE = parse_instant("2026-11-21T03:10:00Z")
NOW = parse_instant("2026-11-21T09:20:00Z")
NO_BREAK = "\u00a0"
EVIDENCE = {
    "node": "n07",
    "pool": "train",
    "utilization_ratio": 0.0,
    "sm_active_ratio": 0.0004,
    "memory_used_bytes": 42.25 * 2**30,
    "power_watts": 68.4,
    "wasted_gpu_ns": {},
}


def card(index: int, state: str = "gone_idle", **more: object) -> IdleAccelerator:
    facts = {
        "since_ms": SINCE + index * 60_000,
        "until_ms": NOW - 60_000,
        "confidence": 0.84,
        "currency": "USD",
        "cost_micro": 15_354_166 + index,
        "per_day_micro": 59_760_000,
        "evidence": EVIDENCE,
        **more,
    }
    finding = Finding(
        f"idle:GPU-{index}:{state}:0",
        "idle",
        state,
        f"GPU-{index}",
        index,
        1,
        "vision",
        {},
        opened_ms=SINCE,
        resolved_ms=None,
        **facts,
    )
    return IdleAccelerator(finding, "NVIDIA H100 80GB HBM3", index)


JOB = IdleWorkload(
    1, "slurm", "48211", "train-yolo", "ada", {}, tuple(card(index) for index in range(4)), 4
)
POD = IdleWorkload(
    2,
    "kubernetes",
    "1f0c",
    "vision/notebook-0",
    "",
    {"namespace": "vision", "pod": "notebook-0", "pod_uid": "1f0c"},
    (card(6, "never_used", confidence=0.64, currency=None, cost_micro=None, per_day_micro=None),),
    1,
)
PARTLY = replace(
    JOB, workload_id=3, external_id="48212", name="sweep-a", accelerators=JOB.accelerators[:1]
)
ANOMALY = Finding(
    "anomaly:vision:USD:0",
    "anomaly",
    "both",
    "vision",
    None,
    None,
    "vision",
    {"team": "vision"},
    SINCE - DAY_MS,
    SINCE,
    NOW,
    None,
    0.92,
    "USD",
    3_141_592_653,
    2_500_000_000,
    {
        "days_before": 7,
        "highest_score": 9.5,
        "price_micro": 141_592_653,
        "volume_micro": 2_900_000_000,
        "mix_micro": 100_000_000,
        "drivers": [
            {"workload": "sweep-a", "model": "H100", "change_micro": 3_000_000_000},
            {"workload": "3 others", "model": "", "change_micro": 141_592_653},
        ],
        "rates": [{"pool": "train", "model": "H100", "before": "2.49", "now": "2.75"}],
    },
)


def _small(number: int, dollars: int, **changed: object) -> AnomalyNotice:
    """An episode that was too small for a mail of its own."""
    evidence = {
        "days_before": 7,
        "before_micro": 2_000_000,
        "cause": "retry storm",
        "sentence": "11 runs of eval of 10 minutes each in 2 hours",
        "workloads": ["eval"],
    }
    finding = replace(
        ANOMALY,
        key=f"anomaly:vision:USD:{number}",
        state="usage",
        cost_micro=dollars * 1_000_000,
        per_day_micro=2 * dollars * 1_000_000,
        evidence=evidence,
    )
    return AnomalyNotice(number, replace(finding, **changed), NOW, ("ada",))


SMALL = SpendingWeek(
    parse_date("2026-11-09"),
    parse_date("2026-11-16"),
    "UTC",
    (
        _small(22, 9, subject="ads", team="ads"),
        _small(23, 7, resolved_ms=NOW),
        _small(24, -1, resolved_ms=NOW),
    ),
    is_small=True,
)
WEEK = WeeklySummary(
    "vision",
    parse_date("2026-11-09"),
    parse_date("2026-11-16"),
    "UTC",
    (
        WastedUsage(
            "train-yolo",
            "ada",
            ("gone_idle",),
            123 * GPU_NS_PER_HOUR,
            "USD",
            306_270_000,
            True,
            59_760_000,
        ),
        WastedUsage(
            "notebook-3",
            "grace",
            ("never_used",),
            41 * GPU_NS_PER_HOUR // 2,
            "USD",
            51_045_000,
            False,
            0,
        ),
        WastedUsage("old-card", "", ("gone_idle",), 9 * GPU_NS_PER_HOUR, None, None, False),
    ),
    5,
    1,
    3,
    ("grace",),
    IdleWeek(300 * GPU_NS_PER_HOUR, {"USD": 708_315_000}),
)
ACTION = ReclaimAction(
    7,
    "k",
    3,
    "scancel",
    {"workload": "48211", "name": "train-yolo"},
    "vision",
    "doing",
    SINCE,
    NOW,
    NOW,
)
TOLD = tuple(
    DigestEntry(kind, NOW - ago * HOUR_MS, subject, text, link)
    for kind, ago, subject, text, link in (
        (
            "budget",
            12,
            "[GPU budget] vision: 83 % of USD 40,000 on day 12 of 30",
            "vision has spent 83 %.\n\nAll.",
            "",
        ),
        (
            "idle",
            3,
            "[GPU idle] train-yolo: 4 GPUs idle",
            "4 GPUs of train-yolo\nhave done nothing.\n\nCost",
            LINKS.notification(17, NOW),
        ),
        (
            "idle",
            2,
            "[GPU idle] notebook-0: 1 GPU idle",
            "1 GPU has done nothing.",
            LINKS.notification(18, NOW),
        ),
    )
)
CASES: dict[str, Content] = {
    "idle-owner": finding_mail.idle(IdleNotice((Section(17, JOB),), NOW, 3), LINKS, PAGES),
    "idle-several": finding_mail.idle(
        IdleNotice((Section(17, JOB), Section(18, POD), Section(19, PARTLY)), NOW, 0), pages=PAGES
    ),
    "idle-team": finding_mail.idle(IdleNotice((Section(18, POD),), NOW, 3, to_owner=False), LINKS),
    "idle-escalated": finding_mail.idle(
        IdleNotice(
            (Section(17, JOB),), NOW + 3 * DAY_MS, 3, NOW, ("ada@example.org",), to_owner=False
        ),
        LINKS,
    ),
    "anomaly": finding_mail.anomaly(AnomalyNotice(21, ANOMALY, NOW), LINKS, PAGES),
    "anomaly-grown": finding_mail.anomaly(
        AnomalyNotice(21, ANOMALY, NOW, ("ada",), collected_ms=NOW - 2 * DAY_MS), LINKS, PAGES
    ),
    "anomalies-week": spending_week_mail.spending_week(SMALL, LINKS, PAGES),
    "anomalies-many": spending_week_mail.spending_week(
        replace(
            SMALL, notices=tuple(_small(30 + number, 5) for number in range(22)), is_small=False
        )
    ),
    "summary": finding_mail.summary(WEEK, PAGES),
    "acted": finding_mail.write_reclaim_mail(ACTION, JOB),
    "digest": digest_mail.write(Digest("ada@example.org", NOW, "Europe/Berlin", TOLD)),
}


def mail(name: str) -> bytes:
    made = Message(f"test/{name}", "test", "ada@example.org", CASES[name], NOW, NOW, "thread")
    return bytes(compose(made, "ledger@example.com"))


@pytest.mark.parametrize("name", CASES)
def test_notifications_are_the_golden_ones(name: str) -> None:
    """Byte for byte; GPULEDGER_GOLDEN=write writes them anew, for a person to look at."""
    path = GOLDEN / f"{name}.eml"
    if os.environ.get("GPULEDGER_GOLDEN") == "write":
        path.write_bytes(mail(name))
    assert mail(name) == path.read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_text_and_html_tell_the_same(name: str) -> None:
    """Every amount and command of the text stands in the HTML, which loads nothing; lines of text
    are short.
    """
    content = CASES[name]
    html = content.html.replace(NO_BREAK, " ").replace("&#39;", "'")
    html = re.sub("</?code>", "`", html)
    for said in re.findall(r"\d[\d,]*\.\d\d|\d+ %|(?:scancel|kubectl|gpuledger) .+", content.text):
        assert said.strip() in html, said
    assert not re.search(r"(src|url)\s*[=(]", content.html)
    paths = set(re.findall(r'href="https://gpuledger.example.com([^?"]*)', content.html))
    assert paths <= {"/v1/notifications/ack", "/jobs/48211", "/idle", "/anomalies"}
    assert content.html.count("href=") == content.html.count('href="https://gpuledger.example.com/')
    lines = [line for line in content.text.splitlines() if "https://" not in line]
    assert max(map(len, lines)) <= 88


def test_the_cost_of_several_is_their_sum() -> None:
    """What the first sentence says is what the sections add up to, to the cent."""
    text = CASES["idle-several"].text
    assert "6 GPUs of 3 workloads" in text
    costs = [round(float(found) * 100) for found in re.findall(r"Cost\s+USD ([\d.]+) so far", text)]
    (total,) = re.findall(
        r"USD ([\d.]+) so far, USD [\d.]+ a day", " ".join(text.split("\n\n")[0].split())
    )
    assert abs(sum(costs) - round(float(total) * 100)) <= 1
    assert "no price is known" in text


def test_a_weeks_rows_add_up_to_its_sum() -> None:
    """To the cent: amounts are rounded together."""
    text = CASES["summary"].text
    (total,) = re.findall(r"Cost\s+USD ([\d.]+)", text)
    (dearest,) = re.findall(r"The dearest\n(.*?)\n\n", text, re.DOTALL)
    rows = re.findall(r"GPU-hours, USD ([\d.]+)", " ".join(dearest.split()))
    assert sum(round(float(one) * 100) for one in rows) == round(float(total) * 100)


def test_commands_quote_what_users_wrote() -> None:
    """A name with a blank, a quote or an option stays one argument."""
    evil = replace(POD, tags={"namespace": "a b", "pod": "x'; rm -rf /"})
    assert reclaim_command(evil) == "kubectl delete pod 'x'\"'\"'; rm -rf /' --namespace 'a b'"
    assert (
        reclaim_command(replace(JOB, kind="process", external_id="ada:py:thon:4711:99"))
        == "kill 4711"
    )
    assert reclaim_command(PARTLY) == ""


def test_a_name_cannot_break_out() -> None:
    """Newlines, tags and formulas in names stay text: in the subject, in the HTML and in the CSV."""
    evil = replace(JOB, name="=x\r\nBcc: all@example.com\n<script>alert(1)</script>", user="<b>")
    content = finding_mail.idle(IdleNotice((Section(1, evil),), NOW, 3), LINKS)
    made = compose(Message("k", "idle", "lead@example.com", content, 0, 0), "ledger@example.com")
    read = email.message_from_bytes(bytes(made), policy=email.policy.default)
    assert read["Bcc"] is None
    assert "<script>" not in content.html
    assert "\nBcc" not in content.text
    assert "'=x" in content.attachments["idle.csv"]


def told(**changes: object) -> Content:
    """The mail of the anomaly with other facts; those of the evidence by their names."""
    evidence = {**ANOMALY.evidence, "drivers": [], "rates": [], **changes.pop("evidence", {})}
    return finding_mail.anomaly(
        AnomalyNotice(21, replace(ANOMALY, evidence=evidence, **changes), NOW)
    )


def test_a_storm_is_told_of_its_job_also_where_it_costs_less() -> None:
    """The money is that of the one job: the team is not said to have spent it, and no day more is
    foretold of less.
    """
    storm = {"cause": "retry storm", "sentence": "54 runs", "workloads": ["asr-eval"]}
    made = told(state="storm", cost_micro=-4_300_000, per_day_micro=-900_000, evidence=storm)
    assert (
        made.subject
        == "[GPU spending] vision: asr-eval is started again and again, USD 4.30 less since 20 Nov,"
        " 03:10 UTC"
    )
    text = " ".join(made.text.split())
    assert text.startswith(
        "asr-eval of vision has spent USD 4.30 less than in the same hours a week before since"
    )
    assert "Likely cause: 54 runs." in text
    assert "Change USD -4.30" in text
    assert "further day" not in text


@pytest.mark.parametrize(
    ("state", "score", "said"),
    [
        ("usage", 9.5, "over 30 hours, far above usual in 28 of them"),
        ("usage", None, "a guess: found within minutes"),
        ("storm", None, "likely, not certain: how its runs ended is not known"),
    ],
)
def test_how_sure_says_what_it_is_made_of(state: str, score: float | None, said: str) -> None:
    """Hours that were judged are counted; what no hour has confirmed is called a guess."""
    evidence = {name: value for name, value in ANOMALY.evidence.items() if name != "highest_score"}
    evidence |= {"workloads": ["x"], **({} if score is None else {"highest_score": score})}
    made = finding_mail.anomaly(
        AnomalyNotice(21, replace(ANOMALY, state=state, evidence=evidence), NOW)
    )
    assert f"How sure {said}" in " ".join(made.text.split())


def test_the_parts_of_an_anomaly_add_up_to_the_cent() -> None:
    """Price, volume and mix are rounded together, and so is what moved it; a part of under half a
    cent is no row.
    """
    moved = [
        {"workload": name, "change_micro": micro}
        for name, micro in (("a", 27_264_800), ("b", 15_774_900), ("c", 6_004_900))
    ]
    parts = {
        "price_micro": 1_000,
        "volume_micro": 27_266_000,
        "mix_micro": 21_777_600,
        "drivers": moved,
    }
    text = told(cost_micro=49_044_600, evidence=parts).text
    amounts = {
        name: round(float(amount) * 100)
        for name, amount in re.findall(r"(\w+) +USD ([\d.]+)", text)
    }
    assert (
        amounts["Change"]
        == amounts["hours"] + amounts["Models"]
        == amounts["a"] + amounts["b"] + amounts["c"]
    )
    assert "Price" not in amounts


@pytest.mark.parametrize("name", ["vision", "a/b c", "..", "(unattributed)", "é"])
def test_links_lead_to_the_pages_of_the_collector(name: str) -> None:
    """The same addresses as those by which the pages link to each other."""
    pages, base = PageLinks("https://gpuledger.example.com/"), "https://gpuledger.example.com"
    assert pages.overview() == f"{base}/"
    assert pages.statement("team", name, "2026-11") == base + site.statement_path(
        "team", name, "2026-11"
    )
    assert pages.job(name) == base + site.job_path(name)
    assert pages.idle(name, "2026-11") == base + site.address(
        site.IDLE, {"period": "2026-11", "team": name}
    )
    assert pages.anomalies(name) == base + site.address(site.ANOMALIES, {"team": name})


def test_the_mail_of_a_week_names_the_days_of_all_its_episodes() -> None:
    """What was found before the week, by late evidence, is told with it."""
    early = _small(25, 3, since_ms=parse_date("2026-11-05"))
    week = replace(SMALL, notices=(*SMALL.notices, early))
    said = spending_week_mail.spending_week(week, LINKS, PAGES).subject
    assert "5 Nov to 15 Nov: 4 small episodes" in said
