"""What agents read of inference servers and of files of runs."""

import os
import subprocess
import sys

import pytest

from fakes import serving as fake
from gpuledger_agent import serving
from gpuledger_agent.serving import (
    MAX_PAGE_BYTES,
    CounterReader,
    endpoints,
    fetch_page,
    find_workload,
)
from gpuledger_common.readings import Holder, Workload
from gpuledger_common.serving_counters import parse

LLM, OTHER = Workload("4711", "slurm", name="chat"), Workload("4712", "slurm", name="train")


def reader(urls="", progress_dir=None, holders=None, now=lambda: 1_000):
    held = {"GPU-0": [Holder(LLM)]} if holders is None else holders
    return CounterReader(endpoints(urls), progress_dir, lambda: held, now)


def sums(counters):
    found = {}
    for one in counters:
        found[one.counter] = found.get(one.counter, 0) + one.value
    return found


def test_vllm_counts_finished_requests_and_tokens_and_says_when_it_began():
    """Gauges, histograms and aborted requests are no output."""
    counters, started_ms = parse(fake.vllm(1_282_888, 337, 40))
    assert sums(counters) == {"prompt_tokens": 1_282_888, "generated_tokens": 337, "inferences": 43}
    assert started_ms == 1_763_750_000_250
    assert {one.engine for one in counters} == {"vllm"}


def test_triton_tells_inferences_from_requests_of_each_model():
    """A request of a batch of eight is eight inferences."""
    counters, started_ms = parse(fake.TRITON)
    assert sums(counters) == {"requests": 11_593, "inferences": 68_937}
    assert started_ms is None
    assert len({one.part for one in counters}) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (fake.TGI, {"inferences": 1_000, "prompt_tokens": 512_000, "generated_tokens": 128_000}),
        (
            fake.SGLANG,
            {"inferences": 4_097, "prompt_tokens": 8_128_902, "generated_tokens": 7_557_572},
        ),
        (
            "gpuledger_run_steps_total 1200\ngpuledger_run_tokens_total 5e6 1763750000000\n",
            {"steps": 1_200, "tokens": 5_000_000},
        ),
    ],
    ids=["tgi", "sglang", "run"],
)
def test_other_pages(text, expected):
    """TGI's tokens are sums of histograms; a run's own file may carry timestamps."""
    assert sums(parse(text)[0]) == expected


def test_sglang_says_how_long_its_gpus_computed_and_what():
    """Seconds count as milliseconds and need not be whole; a mode's own tokens and time of nothing
    are no counter, and neither is a breakdown of the same time.
    """
    assert sums(parse(fake.SGLANG_GPU)[0]) == {
        "cached_tokens": 75,
        "computed_tokens": 900,
        "decoded_tokens": 300,
        "prefill_gpu_ms": 1_500,
        "decode_gpu_ms": 2_750,
        "other_gpu_ms": 125,
    }


def test_who_asked_is_not_stored_with_a_servers_own_counters():
    """SGLang's labels of requests tell its series apart, and their values are digests."""
    page = "".join(
        f'sglang:prompt_tokens_total{{model_name="m",tenant="{tenant}"}} 5\n'
        for tenant in ("ana", "ben")
    )
    parts = [counter.part for counter in parse(page)[0]]
    assert len(set(parts)) == 2
    assert all(part.startswith("model_name=m,tenant=#") for part in parts)
    assert not any(name in part for part in parts for name in ("ana", "ben"))


def test_vllm_says_which_prompt_tokens_were_cached():
    page = 'vllm:prompt_tokens_cached_total{engine="0"} 34\n'
    assert sums(parse(page)[0]) == {"cached_tokens": 34}


@pytest.mark.parametrize("value", ["-0.5", "NaN", "+Inf", "9007199254741"])
def test_times_that_no_counter_shows_say_nothing(value):
    page = f'sglang:gpu_execution_seconds_total{{category="forward_decode"}} {value}\n'
    assert parse(page)[0] == []


def test_lines_that_no_counter_shows_say_nothing():
    """Fractions, negatives, NaN, infinities, broken labels, and a series that stands there with two
    values.
    """
    good = 'nv_inference_count{model="a\\"b,c}",version="1"} 7\n'
    bad = (
        'nv_inference_count{model="x"} 1.5\nnv_inference_count{model="y"}'
        ' -1\nnv_inference_count{model="z"} NaN\nnv_inference_count{model="w"}'
        ' +Inf\nnv_inference_count{model="v}'
        ' 3\nnv_inference_count{model="u"}\nnv_inference_count{model="t"}'
        ' 1\nnv_inference_count{model="t"} 2\nnv_inference_count_x 4\n'
    )
    (only,) = parse(bad + good)[0]
    assert only.value == 7
    assert only.part == 'model=a"b,c},version=1'


def test_a_counter_belongs_to_the_only_or_the_named_workload():
    """Where it is not clear find_workload it is, there is a sentence and no reading."""
    both = [Holder(LLM), Holder(OTHER), Holder(LLM)]
    assert find_workload("", [Holder(LLM), Holder(LLM)]) is LLM
    assert find_workload("train", both) is OTHER
    assert find_workload("4711", both) is LLM
    assert "name one" in find_workload("", both)
    assert "'gone'" in find_workload("gone", both)
    assert "no workload" in find_workload("", [])


def test_a_round_reads_every_endpoint_and_a_failing_one_delays_nobody():
    """The address is told without its query; an error page has no counters; what could not be
    stored comes again.
    """
    with fake.serving(lambda: fake.TGI) as good, fake.serving(lambda: fake.TGI) as bad:
        bad.status = 503
        made = reader(f"{bad.url},chat={good.url}?x=1")
        made.read()
        rows = made.take()
        assert {(one.source, one.workload.id, one.at_ms) for one in rows} == {
            (good.url, "4711", 1_000)
        }
        assert sums(rows) == {
            "inferences": 1_000,
            "prompt_tokens": 512_000,
            "generated_tokens": 128_000,
        }
        assert made.take() == []
        made.put_back(rows)
        assert made.take() == rows
        assert bad.asked == 1


def test_a_page_is_bounded():
    """A server that sends for ever is read up to the bound."""
    with (
        fake.serving(lambda: "x" * (MAX_PAGE_BYTES + 10)) as large,
        pytest.raises(OSError, match="is larger than"),
    ):
        fetch_page(large.url)


def test_a_file_belongs_to_the_workload_that_it_is_named_after(tmp_path):
    """A run without a way to the collector writes a file; that of a run which is not here is passed
    over.
    """
    (tmp_path / "4712.prom").write_text("gpuledger_run_steps_total 40\n")
    (tmp_path / "9.prom").write_text("gpuledger_run_steps_total 1\n")
    (tmp_path / "4712.prom.tmp").write_text("gpuledger_run_steps_total 41\n")
    made = reader(progress_dir=tmp_path, holders={"GPU-0": [Holder(LLM)], "GPU-1": [Holder(OTHER)]})
    made.read()
    (row,) = made.take()
    assert (row.workload, row.counter, row.value, row.source) == (
        OTHER,
        "steps",
        40,
        "file:4712.prom",
    )


def test_a_file_that_is_none_holds_nothing_up(tmp_path, caplog):
    """A pipe that nobody writes to, a folder, a device: what a user may put there.

    Names that are gone are no more.
    """
    os.mkfifo(tmp_path / "4711.prom")
    (tmp_path / "chat.prom").mkdir()
    (tmp_path / "train.prom").symlink_to("/dev/zero")
    (tmp_path / "4712.prom").write_text("gpuledger_run_steps_total 40\n")
    (tmp_path / "a\nERROR b.prom").touch()
    made = reader(progress_dir=tmp_path, holders={"GPU-0": [Holder(LLM)], "GPU-1": [Holder(OTHER)]})
    open_files = len(os.listdir("/proc/self/fd"))
    with caplog.at_level("INFO", "gpuledger_agent"):
        made.read()
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert [one.source for one in made.take()] == ["file:4712.prom"]
    said = [record.getMessage() for record in caplog.records]
    assert "counters of file:4711.prom: no counters: not a regular file" in said
    assert any(one.startswith("counters of file:a\\nERROR b.prom: no workload") for one in said)
    assert len(made._logged) == 4
    for path in tmp_path.iterdir():
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    made.read()
    assert made._logged == {}


def test_of_more_readings_than_are_kept_the_oldest_go(tmp_path, monkeypatch):
    """In the order of their making, what could not be spooled before what was read meanwhile; no
    endless labels.
    """
    monkeypatch.setattr(serving, "MAX_READINGS", 3)
    file, now = tmp_path / "4711.prom", [0]
    made = reader(progress_dir=tmp_path, now=lambda: now[0])

    def look(at_ms, text="gpuledger_run_steps_total 1"):
        now[0] = at_ms
        file.write_text(text + "\n")
        made.read()

    look(1)
    unspooled = made.take()
    look(2)
    made.put_back(unspooled)
    look(3)
    assert [one.at_ms for one in made.take()] == [1, 2, 3]
    for at_ms in range(10, 20):
        look(at_ms)
    look(20, f'gpuledger_run_steps_total{{model="{"x" * 600}"}} 1')
    assert [one.at_ms for one in made.take()] == [17, 18, 19]


@pytest.mark.parametrize(
    "text",
    ["localhost:8000", "http://", "ftp://a/b", "http://me:secret@h/metrics", "a=http://h:99999/"],
)
def test_an_address_that_is_none_is_refused_without_its_password(text):
    """The sentence may be logged."""
    with pytest.raises(ValueError, match=r"is not \[WORKLOAD=\]http|must not hold") as error:
        endpoints(text)
    assert "secret" not in str(error.value)


def test_the_code_is_not_in_memory_where_nothing_is_configured():
    """Agents without inference servers do not pay for them."""
    script = (
        "import sys, gpuledger_agent.daemon, gpuledger_agent.settings as s; s.load(None, {});"
        " sys.exit('gpuledger_agent.serving' in sys.modules or 'gpuledger_common.serving_counters'"
        " in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
