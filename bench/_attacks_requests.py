"""Attacks by requests: routes, tokens, forged evidence, bombs, slow bodies, old days, smuggling and
floods.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import time
from collections.abc import Iterator

import msgspec

from bench._attacks_arena import HEADER, IDENTITIES, JSON, Arena, Row
from fakes import two_teams
from fakes.batches import HOUR_MS, accelerator, batch, body_of, free, held, samples, workload
from fakes.poison import poisons
from fakes.processes import MSGPACK
from fakes.prometheus import WRITE, headers, one, scrape, snappy
from fakes.routes import BODIES, OWN, REFUSED, RULES, address
from fakes.two_teams import FOREIGN
from gpuledger_common.compression import zstd
from gpuledger_common.wire import Samples

MIB = 1024 * 1024
NOW_MS = two_teams.NOW_MS // 60_000 * 60_000
CHARGEABLE = "by=team", "by=project,user", "by=workload,node", "by=pool"
ASKED = (
    *CHARGEABLE,
    f"team={FOREIGN}",
    f"owner=team%3D{FOREIGN}",
    "all=true&limit=1000",
    "after=0&limit=1000",
    "open_only=false",
    "by=team%27%20OR%201%3D1--",
    "from=0001-01-01&to=9999-12-31",
    "limit=99999999999999999999",
    "state=%00",
)
"""Added to every reading route: other cuts, the other team by name, and values that break
statements.
"""


def judge(row: Row, what: str, role: str | None, status: int, told: object, text: str) -> None:
    """No fault, and nothing of the other team for those who may not see it."""
    waits = status == 503 and "Retry-After" in told  # type: ignore[operator]
    row.expect(0 < status < 500 or waits, f"{what} as {role}: {status} {text[:150]}")
    row.expect("Traceback" not in text, f"{what} as {role}: shows a traceback")
    if role in {None, "agent", "viewer"} and FOREIGN not in what:
        row.expect(FOREIGN not in text, f"{what} as {role}: shows {FOREIGN}")


def routes(arena: Arena) -> None:
    """Every operation of the description as everybody."""
    described = json.loads(arena.ask("GET", "/openapi.json", "nobody")[2])["paths"]
    operations = sorted(
        f"{method.upper()} {path}" for path, methods in described.items() for method in methods
    )
    with arena.attack(f"every route of the OpenAPI ({len(operations)})", "all seven") as row:
        row.expect(set(operations) <= set(RULES), f"no rule for {set(operations) - set(RULES)}")
        for operation in operations:
            method, _, path = operation.partition(" ")
            body = None if method == "GET" else json.dumps(BODIES.get(path, {})).encode()
            for identity in IDENTITIES:
                role = identity if identity in two_teams.ROLES else None
                status, told, text = arena.ask(method, address(path), identity, body, JSON)
                row.count(status)
                judge(row, operation, role, status, told, text)
                refused = role in REFUSED[RULES[operation]]
                row.expect(
                    (status in {401, 403}) == refused, f"{operation} as {identity}: {status}"
                )
        for path in sorted(
            operation[4:] for operation in operations if operation.startswith("GET /v1/")
        ):
            for asked in ASKED:
                where = f"{address(path)}&{asked}"
                status, told, text = arena.ask("GET", where, "viewer")
                row.count(status)
                judge(row, where, "viewer", status, told, text)
                if RULES[f"GET {path}"] != OWN:
                    row.expect(status != 200, f"GET {where} as viewer: 200")
                elif status == 200:
                    row.expect(
                        f"{FOREIGN}-" not in text, f"GET {where} as viewer: shows the other team"
                    )


def tokens(arena: Arena) -> None:
    """Guessed tokens, hashes for tokens, and a person's name from an address that is no proxy's."""
    with arena.attack("guessed tokens, hashes, identity headers", "nobody") as row:
        hashes = [hashlib.sha256(arena.secrets["admin"].encode()).hexdigest()]
        hashes += [str(value) for (value,) in arena.query("SELECT hash FROM token")]
        guesses = [
            *hashes,
            *(f"gpl_{number:043}" for number in range(200)),
            "",
            " ",
            "null",
            "gpl_",
            "x" * 60_000,
        ]
        named = [
            {HEADER: name, "X-Forwarded-For": address}
            for name in ("admin", "finance", "viewer")
            for address in ("10.0.0.1", "127.0.0.1")
        ]
        named += [
            {HEADER.lower(): "admin", "Forwarded": "for=10.0.0.1", "X-Real-IP": "10.0.0.1"},
            {"X-Forwarded-Client-Cert": 'Subject="CN=admin"'},
            {"Cookie": f"token={hashes[0]}"},
        ]
        for told in [*({"Authorization": f"Bearer {guess}"} for guess in guesses), *named]:
            for path in (
                ("/v1/nodes",)
                if "Authorization" in told
                else ("/v1/nodes", "/v1/audit", "/v1/chargeback")
            ):
                status = arena.ask("GET", path, "nobody", None, told)[0]
                row.count(status)
                row.expect(
                    status in {0, 400, 401, 403, 431}, f"{path} with {str(told)[:90]}: {status}"
                )


def of_node(node: str, seq: int, **changes: object) -> bytes:
    """A batch of the present in JSON."""
    made = batch(seq, node, 1, NOW_MS - HOUR_MS, samples=samples(1, []), **changes)
    return msgspec.json.encode(made)


def forge_names(arena: Arena) -> None:
    """Other nodes' names, devices, runs and keys by the token of one node."""
    own = f"{two_teams.OWN}-node"
    names = [
        f"{FOREIGN}-node",
        f"{FOREIGN.upper()}-node",
        f"{FOREIGN}-node ",
        f" {FOREIGN}-node",
        f"{own}\n{FOREIGN}-node",
        f"{own}\x00",
        f"{own}/../{FOREIGN}-node",
        f"{FOREIGN}\u2010node",
        "*",
        "%",
        "",
        "neighbor",
        own.upper(),
    ]
    where = (
        "SELECT a.uuid, a.model, a.health, c.node_id FROM accelerator a "
        f"JOIN capacity c ON c.accelerator_id = a.id WHERE a.uuid = 'GPU-{FOREIGN}' ORDER BY 4"
    )
    with arena.attack("forged nodes, devices, runs and keys", "agent of a node") as row:
        before, bill = arena.query(where), arena.bill(FOREIGN)
        for seq, name in enumerate(names, 900):
            plain = of_node(name, seq)
            twice = of_node(own, seq)[:-1] + b',"node":' + json.dumps(name).encode() + b"}"
            packed = body_of(batch(seq, name, 1, NOW_MS - HOUR_MS))
            for body, kind in ((plain, JSON), (twice, JSON), (packed, MSGPACK)):
                status, _, text = arena.ask("POST", "/v1/batches", "agent", body, kind)
                row.count(status)
                row.expect(400 <= status < 500, f"a batch of {name!r}: {status} {text[:100]}")
        stolen = accelerator(
            0,
            own,
            uuid=f"GPU-{FOREIGN}",
            device_uuid=f"GPU-{FOREIGN}",
            model="Tesla T4",
            health="failed",
        )
        for number in range(20):
            at_ms = NOW_MS - (number * 5 + 3) * HOUR_MS
            spans = [held(0, at_ms, at_ms + HOUR_MS), free(0, at_ms - HOUR_MS, at_ms)][number % 2 :]
            made = batch(1000 + number, own, 0, usage_intervals=spans, samples=Samples())
            body = body_of(msgspec.structs.replace(made, accelerators=[stolen]))
            status, _, text = arena.ask("POST", "/v1/batches", "agent", body, MSGPACK)
            row.count(status)
            row.expect(status in {200, 422, 429}, f"another node's device: {status} {text[:100]}")
        for seq in range(1000, 1004):  # the same keys, other bytes: a clone of the agent
            status = arena.ask("POST", "/v1/batches", "agent", of_node(own, seq), JSON)[0]
            row.count(status)
            row.expect(status == 409, f"other bytes under a known key: {status}")
        for _ in range(50):
            status = arena.ask(
                "POST", "/v1/batches", "agent", two_teams.six_days(two_teams.OWN, 1), JSON
            )[0]
            row.count(status)
            row.expect(status == 200, f"a batch that was sent again: {status}")
        told = set()
        for name in (f"{FOREIGN}-1", f"{FOREIGN}-job", "nobody-1"):
            status, _, text = arena.ask(
                "POST", f"/v1/runs/{name}/progress", "agent", b'{"steps": 1}', JSON
            )
            row.count(status)
            told.add((status, text.replace(name, "")))
        row.expect(len(told) == 1, f"runs are told apart: {told}")
        for body in (b"\x00", snappy(one(scrape(NOW_MS, node=f"{FOREIGN}-node")))):
            status = arena.ask("POST", WRITE, "agent", body, headers())[0]
            row.count(status)
            row.expect(status == 403, f"remote write by a node's token: {status}")
        time.sleep(6)  # what was taken is folded and rated
        known = {str(name) for (name,) in arena.query("SELECT name FROM node")}
        row.expect(
            known <= {own, f"{FOREIGN}-node", "neighbor"}, f"nodes that nobody may report: {known}"
        )
        row.expect(arena.query(where) == before, f"devices moved: {before} {arena.query(where)}")
        row.expect(arena.bill(FOREIGN) == bill, f"{FOREIGN} owed {bill}, now {arena.bill(FOREIGN)}")


def _bodies() -> Iterator[tuple[str, str, bytes, dict[str, str]]]:
    packed = {**JSON, "Content-Encoding": "zstd"}
    head = as_head(of_node(f"{two_teams.OWN}-node", 1))
    many = b",".join([b'{"id":"%d","kind":"k"}' % number for number in range(700_000)])
    yield (
        "700,000 workloads",
        "/v1/batches",
        zstd.compress(head + b',"workloads":[' + many + b"]}"),
        packed,
    )
    empty = b",".join([b"{}"] * 2_000_000)
    yield (
        "2,000,000 accelerators",
        "/v1/batches",
        zstd.compress(head + b',"accelerators":[' + empty + b"]}"),
        packed,
    )
    for path in ("/v1/batches", "/v1/queue", "/v1/runs/x/progress", "/v1/disputes", WRITE):
        yield "deep lists", path, b"[" * 100_000, JSON
        yield "deep objects", path, b'{"a":' * 40_000, JSON
        yield "a number without end", path, b"9" * 200_000, JSON
    bomb = zstd.compress(zstd.compress(bytes(400 * MIB)))
    yield "a bomb in a bomb", "/v1/batches", bomb, MSGPACK
    yield (
        "a bomb of gzip",
        "/v1/batches",
        gzip.compress(bytes(200 * MIB), 6),
        {**MSGPACK, "Content-Encoding": "gzip"},
    )
    yield "a bomb of zstd", "/v1/batches", zstd.compress(bytes(400 * MIB)), MSGPACK
    yield "5 MiB", "/v1/batches", b"x" * 5 * MIB, MSGPACK
    yield (
        "100 tags of 100 kB",
        "/v1/batches",
        body_of(
            batch(
                1,
                f"{two_teams.OWN}-node",
                workloads=[workload(tags={f"t{n}": "x" * 100_000 for n in range(100)})],
            )
        ),
        MSGPACK,
    )


def as_head(plain: bytes) -> bytes:
    """A batch in JSON without its lists and its last brace."""
    made = json.loads(plain)
    return json.dumps(
        {key: made[key] for key in ("version", "node", "epoch", "seq", "heartbeat")}
    ).encode()[:-1]


def bombs(arena: Arena) -> None:
    """Bodies that are small on the wire, from the agent of a node and from nobody; and poison of
    any node.
    """
    bodies, poisoned = list(_bodies()), [poison for seq in (1, 100) for poison in poisons(seq)]
    with arena.attack("bombs, nesting, poisoned bodies", "nobody, agent, any node") as row:
        before = arena.resident()
        for name, path, body, kind in bodies:
            for identity in ("nobody", "agent", "agent", "any node"):
                status, _, text = arena.ask("POST", path, identity, body, kind)
                row.count(status)
                row.expect(
                    status == 0 or 400 <= status < 500,
                    f"{name} to {path} as {identity}: {status} {text[:100]}",
                )
        for poison in poisoned:
            status, _, text = arena.ask(
                "POST", poison.path, "any node", poison.body, poison.headers
            )
            row.count(status)
            row.expect(200 <= status < 500, f"{poison.name}: {status} {text[:100]}")
        grown = arena.resident() - before
        row.seen[f"memory {grown:+.0f} MiB"] += 1
        row.expect(grown < 400, f"the collector grew by {grown:.0f} MiB")


def slow(arena: Arena) -> None:
    """Bodies without end and without haste on many connections, held for half a minute."""
    post = (
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type:"
        " application/{kind}\r\n{token}{length}\r\n\r\n"
    )
    token = f"Authorization: Bearer {arena.secrets['agent']}\r\n"
    kinds = [
        (post.format(path=path, kind="json", token=known, length=length), again)
        for path in ("/v1/batches", "/v1/disputes", "/v1/queue", WRITE)
        for known in ("", token)
        for length, again in (
            ("Content-Length: 4000000", b"z"),
            ("Transfer-Encoding: chunked", b"1\r\nz\r\n"),
        )
    ] + [
        ("GET /healthz HTTP/1.1\r\nX: ", b"y"),
        ("", b"\r\n"),
        ("POST /v1/batches HTTP/1.1\r\nHost: ", b"x"),
    ]
    with (
        arena.attack("slow heads and bodies, chunks without end", "nobody, agent") as row,
        contextlib.ExitStack() as stack,
    ):
        open_now = []
        for number in range(240):
            connection = stack.enter_context(arena.socket())
            head, again = kinds[number % len(kinds)]
            connection.sendall(head.encode())
            connection.settimeout(0.02)
            open_now.append((connection, again))
            row.count("slow connection")
        for known in ("", token):  # chunks as fast as they are taken
            answer = b""
            with arena.socket() as connection, contextlib.suppress(OSError):
                connection.settimeout(20)
                head = kinds[1][0].replace("json", "msgpack").replace("\r\nTr", f"\r\n{known}Tr")
                connection.sendall(head.encode())
                with contextlib.suppress(OSError):
                    for _ in range(64 * MIB // 65536):
                        connection.sendall(b"10000\r\n" + bytes(65536) + b"\r\n")
                answer = connection.recv(100)
            row.count(f"{answer[9:12].decode() or 'closed'} to 64 MiB in chunks")
            row.expect(answer[9:10] in {b"", b"4"}, f"64 MiB in chunks without an end: {answer!r}")
        for _ in range(20):
            for connection, again in open_now:
                with contextlib.suppress(OSError):
                    connection.sendall(again)
            time.sleep(1)


def old_days(arena: Arena) -> None:
    """A usage interval a day from 2000 on, 40 days a batch: none may make a partition."""
    day_ms, first = 24 * HOUR_MS, 946_684_800_000
    own = f"{two_teams.OWN}-node"
    count = "SELECT count(*) FROM pg_inherits"
    bodies = []
    for seq in range(110):
        days = [first + (seq * 40 + number) * day_ms for number in range(40)]
        spans, readings = [free(0, day, day + 60_000) for day in days], samples(1, days)
        bodies.append(body_of(batch(2000 + seq, own, 1, usage_intervals=spans, samples=readings)))
    with arena.attack("evidence of 4,400 old days", "agent of a node, any node") as row:
        (before,) = arena.query(count)
        for body in bodies:
            status, _, text = arena.ask("POST", "/v1/batches", "agent", body, MSGPACK)
            row.count(status)
            row.expect(status in {422, 429}, f"40 days of long ago: {status} {text[:100]}")
        for seq in range(0, 4400, 100):
            body = snappy(one(scrape(first + seq * day_ms)))
            status = arena.ask("POST", WRITE, "any node", body, headers())[0]
            row.count(status)
            row.expect(status == 400, f"a scrape of long ago: {status}")
        ahead = samples(1, [NOW_MS + 400 * day_ms])
        status = arena.ask(
            "POST",
            "/v1/batches",
            "agent",
            body_of(batch(2500, own, 1, samples=ahead, usage_intervals=[])),
            MSGPACK,
        )[0]
        row.count(status)
        row.expect(status in {422, 429}, f"a sample of next year: {status}")
        (after,) = arena.query(count)
        row.seen[f"{after[0] - before[0]} new partitions"] += 1  # type: ignore[operator]
        row.expect(after[0] - before[0] <= 10, f"partitions: {before} {after}")  # type: ignore[operator]


INNER = b"GET /v1/audit HTTP/1.1\r\nHost: x\r\n\r\n"
FRAMINGS = {
    "length and chunks": b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n",
    "a list of lengths": b"Content-Length: 0, %d\r\n\r\n",
    "a signed length": b"Content-Length: +0%d\r\n\r\n",
    "a blank before the colon": b"Content-Length : %d\r\n\r\n",
    "another coding": b"Transfer-Encoding: xchunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n",
    "a hidden coding": b"Transfer-Encoding:\x0bchunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n",
    "a folded header": b"X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n",
    "a chunk that lies": b"Transfer-Encoding: chunked\r\nX: %d\r\n\r\n0x0\r\n\r\n",
    "a chunk of a negative size": b"Transfer-Encoding: chunked\r\nX: %d\r\n\r\n-1\r\n\r\n",
    "a bare line feed": b"Content-Length: %d\nTransfer-Encoding: chunked\n\n0\n\n",
    "a NUL in a header": b"X: a\x00b\r\nContent-Length: %d\r\n\r\n",
}


def smuggle_requests(arena: Arena) -> None:
    """Heads that two readers would understand differently: what follows them must never be a
    request of its own.
    """
    with arena.attack("smuggled requests", "nobody, viewer") as row:
        for name, framing in FRAMINGS.items():
            for identity in ("nobody", "viewer"):
                for path in (b"/healthz", b"/v1/batches", b"/v1/disputes"):
                    known = "".join(
                        f"{key}: {value}\r\n" for key, value in arena.headers(identity).items()
                    ).encode()
                    head = (
                        b"POST "
                        + path
                        + b" HTTP/1.1\r\nHost: x\r\n"
                        + known
                        + framing.replace(b"%d", b"%d" % len(INNER))
                    )
                    received = b""
                    with arena.socket() as connection, contextlib.suppress(OSError):
                        connection.settimeout(1)
                        connection.sendall(head + INNER)
                        while part := connection.recv(65536):
                            received += part
                    answers = received.count(b"HTTP/1.1 ")
                    row.count(received[9:12].decode() or "closed")
                    row.expect(
                        answers <= 1, f"{name} to {path.decode()} as {identity}: {answers} answers"
                    )
                    row.expect(b"hash" not in received, f"{name}: an answer of the audit log")


QUIET = (routes, tokens, forge_names, bombs, slow, old_days, smuggle_requests)
