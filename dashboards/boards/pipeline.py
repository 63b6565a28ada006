"""Whether the numbers of the other boards can be trusted."""

from __future__ import annotations

from dashboards.grafana import (
    COUNT,
    DURATION,
    GREEN,
    ORANGE,
    RATIO,
    VERMILION,
    Board,
    column,
    link,
    series,
    stat,
    table,
)
from dashboards.sql import (
    DAY_TIME,
    DAYS,
    UNWATCHED,
    datasource,
    in_choice,
    leading,
    node,
)

NODES = in_choice("n.name", "node")
WATCHED = f"n.status NOT IN ({UNWATCHED}) AND {NODES}"
"""Chosen nodes of which a sign of life is expected: none that went on purpose, until it reports
again.
"""
BEAT = "coalesce((n.heartbeat ->> '{}')::bigint, 0)"
PRODUCED, ACKED, PENDING, DROPPED, DEAD = (
    BEAT.format(name) for name in ("produced", "acked", "pending", "dropped", "dead")
)
TO_NODE = (
    link(
        "This node",
        "gpuledger-node",
        "var-node=${__data.fields.node:percentencode}",
        keep=("datasource",),
    ),
)
BATCHES = "$__timeFilter(b.received_at)"
RUNS = "$__timeFilter(r.started_at) AND r.ended_at IS NOT NULL"
SLOWEST = leading("r.job", "job_run r", RUNS, "extract(epoch FROM r.ended_at - r.started_at)")
RUNTIMES = "How long jobs run"
FAULTS = "Failed jobs and conflicts (empty is good)"
NONE_IS_GOOD = ((None, GREEN), (1, VERMILION))

BOARD = Board(
    "gpuledger-pipeline",
    "Pipeline trust",
    "can these numbers be believed?",
    "Delay, losses and conservation: from the agents' own counters to the bill.",
    (datasource(), node()),
    (
        (
            "At a glance",
            (
                stat(
                    "Nodes heard of",
                    "Nodes whose agent gave a sign of life in the last 5 minutes, over all that are"
                    " neither retired nor uninstalled.",
                    "SELECT count(*) FILTER (WHERE n.last_seen_at >= now() - interval '5"
                    f" minutes')::float8 / nullif(count(*), 0) AS part FROM node n WHERE {WATCHED}",
                    RATIO,
                    width=3,
                    limits=(0, 1),
                    steps=((None, VERMILION), (0.9, ORANGE), (1, GREEN)),
                ),
                stat(
                    "Longest silence",
                    "Since the last sign of life of the most silent node.",
                    "SELECT extract(epoch FROM now() - min(n.last_seen_at)) AS seconds FROM node n"
                    f" WHERE {WATCHED}",
                    DURATION,
                    width=3,
                    steps=((None, GREEN), (300, ORANGE), (3600, VERMILION)),
                ),
                stat(
                    "Batches lost",
                    "Dropped from full spools or refused for good, by the agents' own counts.",
                    f"SELECT coalesce(sum({DROPPED} + {DEAD}), 0) AS batches FROM node n WHERE"
                    f" {NODES}",
                    COUNT,
                    width=3,
                    steps=NONE_IS_GOOD,
                ),
                stat(
                    "Batches waiting",
                    "Made and not yet acknowledged, at each node's last sign of life.",
                    f"SELECT coalesce(sum({PENDING}), 0) AS batches FROM node n WHERE {NODES}",
                    COUNT,
                    width=3,
                ),
                stat(
                    "To recompute",
                    "Marks of hours and days with new evidence that jobs have not taken up yet.",
                    "SELECT (SELECT count(*) FROM hour_recompute) AS hours, (SELECT count(*) FROM"
                    " day_recompute) AS days",
                    COUNT,
                    width=3,
                ),
                stat(
                    "Days that hold",
                    "Part of the rated days of the last 30 days, to the last micro-unit.",
                    "SELECT count(*) FILTER (WHERE l.holds)::float8 / nullif(count(*), 0) AS part "
                    f"FROM conservation_check l WHERE {DAYS}",
                    RATIO,
                    width=3,
                    steps=((None, VERMILION), (1, GREEN)),
                    time_from="30d/d",
                    limits=(0, 1),
                ),
                stat(
                    "Failed job runs",
                    "Runs of the range that failed or were interrupted; the last row of this board"
                    " lists them.",
                    "SELECT count(*) AS runs FROM job_run r WHERE $__timeFilter(r.started_at) AND"
                    " r.outcome <> 'done'",
                    COUNT,
                    width=3,
                    steps=NONE_IS_GOOD,
                ),
                stat(
                    "Conflicts",
                    "Other bytes under a known batch number in the range; the last row of this"
                    " board lists them.",
                    "SELECT count(*) AS conflicts FROM ingest_conflict i WHERE"
                    " $__timeFilter(i.received_at)",
                    COUNT,
                    width=3,
                    steps=NONE_IS_GOOD,
                ),
            ),
        ),
        (
            "What arrives",
            (
                series(
                    "Batches and samples a minute",
                    "What the collector committed.",
                    f"""
                   SELECT date_bin('$__interval_ms milliseconds', b.received_at, '2000-01-01') AS "time",
                       count(*) * 60000.0 / $__interval_ms AS batches,
                       sum(b.samples) * 60000.0 / $__interval_ms AS samples
                   FROM ingest_batch b WHERE {BATCHES} GROUP BY 1 ORDER BY 1
                   """,
                    COUNT,
                    interval="1m",
                    decimals=1,
                ),
                series(
                    "Unobserved capacity",
                    "Unobserved time of each of the last 30 days, over its capacity.",
                    f"""
                   SELECT {DAY_TIME}, l.unobserved_ns / nullif(l.capacity_ns, 0) AS "unobserved"
                   FROM conservation_check l WHERE {DAYS} ORDER BY 1
                   """,
                    RATIO,
                    bars=True,
                    interval="1d",
                    decimals=2,
                    time_from="30d/d",
                ),
            ),
        ),
        (
            "Conservation, node by node",
            (
                table(
                    "Batch conservation by agent",
                    "produced = acknowledged + pending + dropped + dead. An acknowledgement may be"
                    " one heartbeat behind. newest sample is how far it lay behind (or, with a"
                    " wrong clock, ahead of) the last sign of life.",
                    f"""
                  SELECT n.name AS node, {PRODUCED} - {ACKED} - {PENDING} - {DROPPED} - {DEAD} AS unaccounted,
                      {DROPPED} AS dropped, {DEAD} AS dead, {PENDING} AS pending, {PRODUCED} AS produced,
                      {ACKED} AS acknowledged,
                      newest.at_ms / 1000.0 - extract(epoch FROM n.last_seen_at) AS "newest sample",
                      n.last_seen_at AS "last seen"
                  FROM node n LEFT JOIN (SELECT c.node_id, max(l.at_ms) AS at_ms FROM gpu_latest l
                      JOIN capacity c ON c.accelerator_id = l.accelerator_id AND c.out_ms IS NULL GROUP BY 1) newest
                      ON newest.node_id = n.id
                  WHERE {NODES} ORDER BY abs({PRODUCED} - {ACKED} - {PENDING} - {DROPPED} - {DEAD}) DESC,
                      {DROPPED} + {DEAD} DESC, 1 LIMIT 2000
                  """,
                    COUNT,
                    width=24,
                    height=8,
                    decimals=0,
                    overrides=(
                        column("node", unit="string", links=list(TO_NODE)),
                        column("unaccounted", cell="color-text", steps=NONE_IS_GOOD),
                        column("dropped", cell="color-text", steps=NONE_IS_GOOD),
                        column("dead", cell="color-text", steps=NONE_IS_GOOD),
                        column("newest sample", unit=DURATION),
                        column("last seen", unit="time:YYYY-MM-DD HH:mm:ss", width=155),
                    ),
                ),
                table(
                    "Missing batch numbers",
                    "Batches of the range by spool: numbers between the first and the last "
                    "that never came. What was dropped leaves a hole; what waits does not.",
                    f"""
                  SELECT n.name AS node, found.missing, found.batches, found.samples,
                      found.usage_intervals AS "usage intervals", found.newest, found.epoch::text AS spool
                  FROM (SELECT b.node_id, b.epoch, count(*) AS batches,
                          max(b.seq) - min(b.seq) + 1 - count(*) AS missing, sum(b.samples) AS samples,
                          sum(b.usage_intervals) AS usage_intervals, max(b.received_at) AS newest
                      FROM ingest_batch b WHERE {BATCHES} GROUP BY 1, 2) found
                  JOIN node n ON n.id = found.node_id WHERE {NODES} ORDER BY 2 DESC, 1, 7 LIMIT 500
                  """,
                    COUNT,
                    width=24,
                    height=8,
                    decimals=0,
                    overrides=(
                        column("node", unit="string", links=list(TO_NODE)),
                        column("missing", cell="color-text", steps=NONE_IS_GOOD),
                        column("newest", unit="time:YYYY-MM-DD HH:mm:ss", width=155),
                        column("spool", unit="string", width=320),
                    ),
                ),
            ),
        ),
        (
            RUNTIMES,
            (
                series(
                    "How long jobs run",
                    "Longest run of the nine slowest jobs, and of all others.",
                    f"""
                   SELECT $__timeGroupAlias(r.started_at, $__interval), {SLOWEST} AS metric,
                       max(extract(epoch FROM r.ended_at - r.started_at)) AS seconds
                   FROM job_run r WHERE {RUNS} GROUP BY 1, 2 ORDER BY 1, 2
                   """,
                    "s",
                    width=24,
                    interval="1m",
                ),
            ),
        ),
        (
            FAULTS,
            (
                table(
                    "Failed jobs",
                    "Failed and interrupted runs of the range; empty is good.",
                    """
                  SELECT r.started_at AS started, r.job, coalesce(r.outcome, 'running') AS outcome, r.detail
                  FROM job_run r WHERE $__timeFilter(r.started_at) AND r.outcome <> 'done' ORDER BY 1 DESC LIMIT 100
                  """,
                    "string",
                    width=14,
                    height=6,
                    overrides=(
                        column("started", unit="time:YYYY-MM-DD HH:mm:ss", width=150),
                        column("job", width=160),
                        column("outcome", width=100),
                    ),
                ),
                table(
                    "Conflicts",
                    "Other bytes under a known batch number: a copied spool or a clash of names."
                    " May be empty, and then that is good.",
                    """
                  SELECT i.received_at AS received, i.node_name AS node, i.epoch::text AS spool, i.seq
                  FROM ingest_conflict i WHERE $__timeFilter(i.received_at) ORDER BY 1 DESC LIMIT 100
                  """,
                    "none",
                    width=10,
                    height=6,
                    overrides=(
                        column("received", unit="time:YYYY-MM-DD HH:mm:ss", width=150),
                        column("node", unit="string"),
                        column("spool", unit="string"),
                    ),
                ),
            ),
        ),
    ),
    since="now-6h",
    collapsed=(RUNTIMES, FAULTS),
    refresh="1m",
)
"""Open it before an argument about a bill."""
