"""gpuledger start with the address of a Prometheus: a real one, whose history is written by
promtool.
"""

import contextlib
import http.server
import json
import shutil
import subprocess
import threading
import time
import urllib.request

import pytest

from fakes.ports import free_port
from gpuledger_collector.ingest.remote_write import history, prometheus_api

HOUR_S, DAY_S, STEP_S = 3600, 86_400, 30
NOBODY = {"pod": "", "namespace": "", "container": ""}
TRAIN = {"pod": "train-0", "namespace": "vision", "container": "train"}
SERVE = {"pod": "serve-0", "namespace": "shared", "container": "serve", "team": "speech"}


def labels_text(gpu, holder):
    labels = {
        "gpu": str(gpu),
        "UUID": f"GPU-{gpu}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "n1",
        "instance": "n1:9400",
        **holder,
    }
    return ",".join(f'{name}="{value}"' for name, value in labels.items() if value)


def open_metrics(series):
    """A file for promtool: of each metric its series one after the other, each a list of (labels,
    value, instant).
    """
    lines = []
    for name, points in series.items():
        lines += [
            f"# TYPE {name} gauge",
            *(f"{name}{{{labels}}} {value} {at_s}" for labels, value, at_s in points),
        ]
    return "\n".join([*lines, "# EOF", ""])


@contextlib.contextmanager
def prometheus(folder, text):
    """A Prometheus that knows nothing but this file; its address."""
    (folder / "past.om").write_text(text)
    (folder / "prometheus.yml").write_text("global: {}\n")
    blocks = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "past.om", "tsdb"]
    subprocess.run(blocks, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    port = free_port()
    command = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=tsdb",
        "--storage.tsdb.retention.time=10y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{address}/-/ready", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline, (folder / "prometheus.log").read_text()[-2000:]
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(60)


def two_gpus(first_s, end_s, turn_s, missing=()):
    """GPU 0 is of TRAIN until `turn_s` and of SERVE from then on, GPU 1 of nobody; some instants
    were not scraped.
    """
    instants = [at_s for at_s in range(first_s, end_s, STEP_S) if at_s not in missing]
    utilization, power = [], []
    for gpu in range(2):
        for at_s in instants:
            holder = NOBODY if gpu else TRAIN if at_s < turn_s else SERVE
            utilization.append((labels_text(gpu, holder), 0 if gpu else 80, at_s))
            power.append((labels_text(gpu, holder), 70 if gpu else 500, at_s))
    utilization.sort()
    power.sort()
    return {"DCGM_FI_DEV_GPU_UTIL": utilization, "DCGM_FI_DEV_POWER_USAGE": power}


def rows_of(run, *days):
    code, out, err = run(
        "chargeback", "--from", days[0], "--to", days[1], "--by", "team", "--format", "json"
    )
    assert code == 0, err
    return {row["team"]: row for row in json.loads(out)["rows"]}


def hours(row):
    return row["gpu_ns"] / 1e9 / HOUR_S


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no prometheus (apt-get install prometheus)"
)
def test_a_prometheus_is_billed_in_one_command(run, fleet, tmp_path, monkeypatch) -> None:
    """Namespaces and labels are teams, an hour without scrapes is unobserved, and a second time
    nothing changes.

    What came before the days of the first time is added by asking for more days.
    """
    now_s = int(time.time())
    day_s = now_s // DAY_S * DAY_S - 2 * DAY_S
    first_s, turn_s, end_s = day_s, day_s + 10 * HOUR_S, now_s
    missing = range(day_s + 4 * HOUR_S + STEP_S, day_s + 5 * HOUR_S, STEP_S)
    days = [time.strftime("%Y-%m-%d", time.gmtime(day_s + number * DAY_S)) for number in range(2)]
    # Small answers, so that ranges are halved and doubled.
    monkeypatch.setattr(prometheus_api, "MAX_ANSWER", 30_000)
    monkeypatch.setattr(history, "_SMALL_SAMPLES", 200)
    with prometheus(
        tmp_path, open_metrics(two_gpus(first_s, end_s, turn_s, set(missing)))
    ) as address:
        code, out, err = run("start", address, "--rate", "3.60", "--days", "1", "--yes")
        assert code == 0, err
        assert f"{address}: 2 GPUs, 1 node, 1 workload by the labels of their exporters" in out
        assert "rules: a pod's team is its label `team`, else its namespace" in out
        code, out, err = run("start", address, "--rate", "3.60", "--days", "5", "--yes")
        assert code == 0, err
        lines = [line.split() for line in out.splitlines()]
        assert ["namespace", "tag:namespace,", "the", "team", "shared,", "vision"] in lines
        bill = rows_of(run, *days)
        # An interval belongs to the scrape at its end: the turn's own to SERVE.
        assert hours(bill["vision"]) == pytest.approx(9 - STEP_S / HOUR_S, abs=1e-9)
        assert hours(bill["speech"]) == pytest.approx(14 + STEP_S / HOUR_S, abs=1e-9)
        assert hours(bill["(unallocated)"]) == pytest.approx(23, abs=1e-9)
        assert hours(bill["(unobserved)"]) == pytest.approx(2, abs=1e-9)
        assert bill["vision"]["cost_micro"] == (9 * HOUR_S - STEP_S) * 1000
        code, out, err = run("start", address, "--rate", "3.60", "--days", "5", "--yes")
        assert code == 0, err
        assert "rate:" not in out
        assert "rules:" not in out
        assert rows_of(run, *days) == bill


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no prometheus (apt-get install prometheus)"
)
def test_the_first_bill_of_a_young_prometheus_is_of_what_was_read(run, fleet, tmp_path) -> None:
    """Twenty minutes of samples, up to ten minutes ago: none of the time that is only not read yet
    is in the bill.
    """
    now_s = int(time.time())
    first_s, end_s = now_s - 30 * 60, now_s - 10 * 60
    with prometheus(tmp_path, open_metrics(two_gpus(first_s, end_s, end_s))) as address:
        code, out, err = run("start", address, "--rate", "3.60", "--yes")
    assert code == 0, err
    bill = {
        line.split()[0]: line
        for line in out.partition("gpuledger chargeback")[2].splitlines()
        if line.strip()
    }
    assert "vision" in bill
    assert "(unobserved)" not in bill, out


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers every request with what the server has, and remembers who asked."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.logins.append(self.headers.get("Authorization", ""))
        status, body = self.server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def endpoint():
    """An HTTP server that is no Prometheus but answers as one would."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.logins, server.answer = [], (200, "{}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (
            (401, "who are you"),
            2,
            "answers 401: it wants a login; --token-file FILE has its bearer token",
        ),
        ((403, '{"status":"error","error":"no"}'), 2, "answers 403: it wants a login"),
        (
            (200, "<html>a page</html>"),
            2,
            "is no Prometheus: /api/v1/series answers 200 without its JSON",
        ),
        ((404, "not found"), 2, "is no Prometheus: /api/v1/series answers 404 without its JSON"),
        (
            (200, '{"status":"success","data":[]}'),
            2,
            "has no series of GPUs (DCGM_FI_DEV_GPU_UTIL and others) since",
        ),
        ((200, '{"status":"success","data":[{"__name__":"up"}]}'), 2, "does it scrape an exporter"),
        (
            (400, '{"status":"error","error":"bad matcher"}'),
            3,
            "/api/v1/series answers 400: bad matcher",
        ),
        ((500, "on fire"), 3, "answers 500: no reason given"),
        (
            (422, '{"status":"error","error":"too many samples"}'),
            3,
            "answers 422: too many samples",
        ),
    ],
)
def test_what_is_no_good_prometheus_is_one_sentence(
    run, fleet, endpoint, answer, code, words
) -> None:
    """A login that is missing, another server, no GPUs, a server that fails: each is said, and
    nothing is imported.
    """
    endpoint.answer = answer
    ended, out, err = run(
        "start", f"http://127.0.0.1:{endpoint.server_address[1]}", "--rate", "1", "--yes"
    )
    assert (ended, out) == (code, "")
    assert words in err
    assert err.count("\n") <= 1
    assert fleet.rows("SELECT * FROM price") == []


@pytest.mark.parametrize("path", ["/api/v1", "/api/v1/", "/api/v1/query?query=up"])
def test_the_path_of_a_pasted_address_is_cut(run, fleet, endpoint, path) -> None:
    """The API begins where the address of the Prometheus ends."""
    endpoint.answer = (404, '{"status":"error","error":"?"}')
    address = f"http://127.0.0.1:{endpoint.server_address[1]}"
    _, _, err = run("start", f"{address}/prefix{path}", "--yes")
    assert f"{address}/prefix/api/v1/series answers 404: ?" in err


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        ("http://127.0.0.1:1", 3, "http://127.0.0.1:1 gives no answer: Connection refused"),
        ("http://127.0.0.1:port", 2, "is no address of a Prometheus; write http://prometheus:9090"),
        ("ftp://prometheus", 2, "ftp://prometheus is no address of a Prometheus"),
        ("http://", 2, "http:// is no address of a Prometheus"),
    ],
)
def test_addresses(run, fleet, address, code, words) -> None:
    """What cannot be reached is another fault than what is no address."""
    ended, out, err = run("start", address, "--yes")
    assert (ended, out) == (code, "")
    assert words in err


def test_logins(run, fleet, endpoint, tmp_path) -> None:
    """A token in a file, or a user and a password in the address, which no message repeats."""
    port = endpoint.server_address[1]
    (tmp_path / "token").write_text("secret-of-prometheus\n")
    run("start", f"http://127.0.0.1:{port}/", "--token-file", tmp_path / "token", "--yes")
    endpoint.answer = (401, "")
    _, out, err = run("start", f"http://ana:p%40ss@127.0.0.1:{port}", "--yes")
    assert endpoint.logins == ["Bearer secret-of-prometheus", "Basic YW5hOnBAc3M="]
    assert "p%40ss" not in out + err
    code, _, err = run(
        "start", f"http://127.0.0.1:{port}", "--token-file", tmp_path / "none", "--yes"
    )
    assert (code, "--token-file: " in err) == (2, True)
    (tmp_path / "ca").write_text("no certificate")
    code, _, err = run("start", "https://127.0.0.1", "--ca-file", tmp_path / "ca", "--yes")
    assert (code, "--ca-file: " in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("http://prometheus:9090", "--zone", "UTC"), "--zone is about a file"),
        (("http://prometheus:9090", "--skip-bad"), "--skip-bad is about a file"),
        (("jobs.csv", "--days", "3"), "are about a Prometheus; its address begins with http://"),
        (
            ("prometheus:9090",),
            "prometheus:9090 is no file; the address of a Prometheus is http://prometheus:9090",
        ),
    ],
)
def test_options_of_the_other_source_are_refused(run, fleet, arguments, words) -> None:
    """An option that would be ignored is refused."""
    code, out, err = run("start", *arguments, "--yes")
    assert (code, out) == (2, "")
    assert words in err


def test_gpus_whose_usage_a_file_brought_are_refused(run, written, fleet, endpoint) -> None:
    """A table without a pool may be about the same GPUs: its file with their pool, or --also,
    decides.
    """
    now_s = int(time.time())
    jobs = written(
        "jobs.csv", f"job_id,start,end,gpus,team\n1,{now_s - 7200},{now_s - 3600},1,vision\n"
    )
    assert run("start", jobs, "--rate", "1", "--yes")[0] == 0
    series = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "UUID": "GPU-1", "Hostname": "n1", "gpu": "0"}
    endpoint.answer = (200, json.dumps({"status": "success", "data": [series]}))
    address = f"http://127.0.0.1:{endpoint.server_address[1]}"
    code, _, err = run("start", address, "--dry-run")
    assert code == 2
    assert "1 workload imported since " in err
    assert "import their file again with --pool default" in err
    code, out, err = run("start", address, "--dry-run", "--also")
    assert (code, "nothing was read" in out) == (0, True), err
    assert run("start", jobs, "--pool", "default", "--yes")[0] == 0
    assert run("start", address, "--dry-run")[0] == 0
