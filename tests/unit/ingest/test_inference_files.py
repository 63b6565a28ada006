"""Files of tokens by tenant: what a row may hold, which rows are refused and why, and what is never
read.
"""

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.token_records import fold_records
from gpuledger_collector.accounting.inference import CLAIM, Asker, TokenRecord, Tokens
from gpuledger_collector.ingest.files.inference import read_inference
from gpuledger_collector.ingest.files.litellm import CACHED, COLUMNS, TenantColumn, read_spend_logs
from gpuledger_collector.ingest.litellm_database import CACHED_PATHS, page_query
from gpuledger_common.bounded_file import FileTooLarge

HEADER = "start,end,model,tenant,input_tokens,cached_tokens,output_tokens"
GOOD = "2026-10-01T08:00:00Z,2026-10-01T09:00:00Z,qwen,vision,1200,200,300"
START = 1_790_841_600_000
HOUR = 3_600_000


@pytest.fixture
def write(tmp_path):
    def write(*rows, header=HEADER):
        path = tmp_path / "tokens.csv"
        path.write_text("\n".join([header, *rows]) + "\n")
        return path

    return write


def test_a_row_is_what_a_tenant_was_answered(write):
    """Its times, model, tenant and counts; an empty tenant is a key without a team."""
    parsed = read_inference(write(GOOD, GOOD.replace("vision", "")), "kong", CLAIM)
    assert not parsed.problems
    first, second = parsed.rows
    assert (first.asker, first.tokens) == (
        Asker("kong", "vision", "qwen", "", CLAIM),
        Tokens(1200, 200, 300),
    )
    assert (first.start_ms, first.end_ms) == (START, START + HOUR)
    assert second.asker.tenant == ""
    assert first.source_id != second.source_id


def test_a_row_says_whether_its_tenant_is_a_claim(write):
    """Its own word counts more than that of the whole file; a claim and a checked tenant of one
    name and hour are two rows.
    """
    path = write(
        *(f"{GOOD.replace('qwen', model)},{claim}" for model, claim in CLAIMS),
        header=f"{HEADER},claim",
    )
    for trust in ("authenticated", CLAIM):
        parsed = read_inference(path, trust=trust)
        assert not parsed.problems
        assert [row.asker.trust for row in parsed.rows] == [CLAIM, "authenticated", trust]
        assert len({row.source_id for row in parsed.rows}) == 3


CLAIMS = (("qwen", "true"), ("qwen", "false"), ("other", ""))
REFUSED = {
    "negative": ("1200,200,300", "-1,0,300", "input_tokens: '-1' is not a whole number of tokens"),
    "negative output": ("200,300", "200,-3", "output_tokens: '-3' is not a whole number"),
    "fraction": ("1200,200", "1200.5,200", "input_tokens: '1200.5' is not a whole number"),
    "NaN": ("1200,", "NaN,", "input_tokens: 'NaN' is not a whole number"),
    "infinite": ("1200,", "inf,", "input_tokens: 'inf' is not a whole number"),
    "huge": ("1200,", "1e99,", "input_tokens: '1e99' is not a whole number"),
    "cached above input": ("1200,200", "100,200", "cached_tokens: 200 are more than the 100 input"),
    "end before start": ("T09:", "T07:", "end: lies before start"),
    "no zone": ("09:00:00Z", "09:00:00", "has no zone"),
    "no model": ("qwen", "", "model: is empty"),
    "a long tenant": ("vision", "v" * 501, "tenant: has 501 characters; at most 500 are kept"),
    "over a month": ("2026-10-01T09", "2026-11-09T09", "covers more than 32 days"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_row_is_one_problem_with_its_line(write, case):
    """Row and reason; the good rows beside it are read."""
    old, new, words = REFUSED[case]
    parsed = read_inference(write(GOOD.replace("qwen", "other"), GOOD.replace(old, new, 1)))
    assert len(parsed.rows) == 1
    (problem,) = parsed.problems
    assert ":3" in problem.source
    assert words in f"{problem.source.rpartition(':')[2]}: {problem.message}"


def test_a_row_that_stands_twice_is_refused(write):
    """Two rows of one time, tenant and model cannot be told apart, unless they have ids."""
    parsed = read_inference(write(GOOD, GOOD.replace("300", "301")))
    assert [problem.message.partition(";")[0] for problem in parsed.problems] == [
        "stands twice in this file"
    ]
    rows = (f"{GOOD},a", f"{GOOD},b")
    assert len(read_inference(write(*rows, header=f"{HEADER},id")).rows) == 2


def test_a_claim_that_is_neither_true_nor_false_is_refused(write):
    """What is not understood is not charged as if the gateway had checked it."""
    parsed = read_inference(write(f"{GOOD},yes", header=f"{HEADER},claim"))
    assert [problem.message for problem in parsed.problems] == ["'yes' is not one of true, false"]
    assert not parsed.rows


def test_a_header_that_lacks_a_column_is_one_problem(write):
    """Cached tokens are not taken for zero where the file has no column for them."""
    header = HEADER.replace(",cached_tokens", "")
    parsed = read_inference(write(GOOD.replace("200,300", "300"), header=header))
    assert [problem.source.rpartition(":")[2] for problem in parsed.problems] == ["cached_tokens"]


LOG_HEADER = (
    "request_id,call_type,api_key,spend,total_tokens,prompt_tokens,completion_tokens,startTime,"
    "endTime,model,model_group,api_base,user,metadata,cache_hit,team_id,end_user,"
    "requester_ip_address,messages,response"
)
LOG = {
    "request_id": "req-1",
    "call_type": "acompletion",
    "api_key": "88dc28secret",
    "spend": "0",
    "total_tokens": "1500",
    "prompt_tokens": "1200",
    "completion_tokens": "300",
    "startTime": "2026-10-01 08:00:00.250",
    "endTime": "2026-10-01 08:00:09.5",
    "model": "hosted_vllm/Qwen3-32B",
    "model_group": "qwen",
    "api_base": "http://10.0.0.1:8000/v1",
    "user": "ana",
    "metadata": '{"a": 1}',
    "cache_hit": "False",
    "team_id": "e8d1",
    "end_user": "customer-7",
    "requester_ip_address": "192.0.2.7",
    "messages": '[{"role": "user", "content": "a secret question"}]',
    "response": '{"choices": ["a secret answer"]}',
}


@pytest.fixture
def write_logs(tmp_path):
    def write(*changes):
        path = tmp_path / "spend.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, LOG_HEADER.split(","))
            writer.writeheader()
            writer.writerows({**LOG, **change} for change in changes)
        return path

    return write


def test_a_spend_log_is_one_request(write_logs):
    """LiteLLM's times are UTC without a zone; its server's address is the backend."""
    logs = read_spend_logs(write_logs({}))
    assert not logs.problems
    asker = Asker("litellm", "e8d1", "hosted_vllm/Qwen3-32B", "http://10.0.0.1:8000/v1")
    assert logs.rows == [
        TokenRecord(asker, "req-1", START + 250, START + 9_500, Tokens(1200, 0, 300, 1))
    ]


def test_a_response_from_the_gateways_cache_moves_no_gpu(write_logs):
    """Rows with cache_hit are counted, and no tokens of them are."""
    logs = read_spend_logs(
        write_logs(
            {"cache_hit": "True"}, {"request_id": "req-2"}, {"request_id": "3", "cache_hit": ""}
        )
    )
    assert (logs.from_cache, [row.source_id for row in logs.rows]) == (1, ["req-2", "3"])


def test_every_attempt_is_a_row(write_logs):
    """A retry has a request_id of its own and counts; one id twice in a file is refused."""
    logs = read_spend_logs(write_logs({}, {"request_id": "req-2"}, {"request_id": "req-2"}))
    assert [row.source_id for row in logs.rows] == ["req-1", "req-2"]
    assert "stands twice" in logs.problems[0].message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_tokens": "-5"}, "prompt_tokens: '-5' is not a whole number"),
        ({"completion_tokens": "NaN"}, "completion_tokens: 'NaN' is not a whole number"),
        ({"endTime": "2026-10-01 07:00:00"}, "endTime: lies before startTime"),
        ({"request_id": ""}, "request_id: is empty"),
        ({"startTime": "soon"}, "startTime: 'soon' is not an instant"),
    ],
)
def test_a_bad_spend_log_is_one_problem_with_its_line(write_logs, change, words):
    logs = read_spend_logs(write_logs({"request_id": "good"}, change))
    assert [row.source_id for row in logs.rows] == ["good"]
    (problem,) = logs.problems
    assert ":3" in problem.source
    assert words in f"{problem.source.rpartition(':')[2]}: {problem.message}"


def test_prompts_addresses_and_keys_are_not_kept(write_logs):
    """Of a whole row of the table, nothing of callers is in what is read, nor in what is said of
    it, unless the column of users is asked for.
    """
    logs = read_spend_logs(write_logs({}, {"request_id": ""}))
    shown = repr(logs)
    for secret in ("secret", "192.0.2.7", "88dc28", "customer-7"):
        assert secret not in shown
    assert "'ana'" not in shown
    (row,) = read_spend_logs(write_logs({}), tenant=TenantColumn.user).rows
    assert (row.asker.tenant, row.asker.trust) == ("ana", "authenticated")


def test_the_user_of_the_body_is_a_claim(write_logs):
    """`end_user` is chosen by the client."""
    (row,) = read_spend_logs(write_logs({}), tenant=TenantColumn.end_user).rows
    assert (row.asker.tenant, row.asker.trust) == ("customer-7", CLAIM)


@pytest.mark.parametrize("tenant", TenantColumn)
def test_a_file_without_the_column_of_tenants_is_refused(tmp_path, tenant):
    """Its tokens would all be nobody's; a blank cell is a key without a team."""
    path = tmp_path / "spend.csv"
    header, row = (
        "request_id,startTime,endTime,model,cache_hit,prompt_tokens,completion_tokens",
        ("r,2026-10-01 08:00:00,2026-10-01 08:00:01,qwen,,10,1"),
    )
    path.write_text(f"{header}\n{row}\n")
    logs = read_spend_logs(path, tenant=tenant)
    assert not logs.rows
    assert [problem.source.rpartition(":")[2] for problem in logs.problems] == [tenant.value]
    path.write_text(f"{header},{tenant.value}\n{row},\n")
    logs = read_spend_logs(path, tenant=tenant)
    assert [record.asker.tenant for record in logs.rows] == [""]
    assert not logs.problems


@pytest.mark.parametrize("tenant", TenantColumn)
def test_the_database_is_asked_for_no_more_than_the_file(tenant):
    """No query names a column of prompts, answers, addresses or keys; of the metadata it asks for
    one number.
    """
    text = page_query(tenant).as_string(None)
    asked = text.partition(" FROM ")[0].removeprefix("SELECT ").replace('"', "")
    columns, _, cached = asked.partition(", coalesce(")
    assert columns.split(", ") == [*COLUMNS, tenant.value]
    numbers, _, name = cached.partition(") AS ")
    assert numbers.split(", ") == [f"metadata #>> '{path}'" for path in CACHED_PATHS]
    assert name == CACHED
    assert all(path.endswith(("cached_tokens}", "input_tokens}")) for path in CACHED_PATHS)


def test_cached_tokens_of_a_file_are_a_column_of_their_own(tmp_path):
    """An empty cell is none; more than the prompt is refused."""
    names = "model,cache_hit,team_id,prompt_tokens,completion_tokens,cached_tokens"
    header = f"request_id,startTime,endTime,{names}\n"
    row = "r{},2026-10-01 08:00:00,2026-10-01 08:00:01,qwen,,e8d1,10,1,{}\n"
    path = tmp_path / "logs.csv"
    path.write_text(header + row.format(1, 4) + row.format(2, "") + row.format(3, 11))
    logs = read_spend_logs(path)
    assert [record.tokens.cached for record in logs.rows] == [4, 0]
    assert [problem.code for problem in logs.problems] == ["bad_record"]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(0, 3 * HOUR),
            st.integers(0, 10**6),
            st.integers(0, 10**6),
            st.integers(0, 10**6),
        ),
        max_size=20,
    ),
    st.randoms(use_true_random=False),
)
def test_order_and_duplicates_change_nothing(rows, order):
    """Records in any order, doubled, give the same hours, which add up to them."""
    records = [
        TokenRecord(
            Asker("g", "t", "m"),
            str(number),
            START,
            START + length,
            Tokens(cached + computed, cached, output, 1),
        )
        for number, length, computed, cached, output in rows
    ]
    shuffled = [*records, *records]
    order.shuffle(shuffled)
    hours = fold_records(shuffled)
    assert hours == fold_records(records)
    unique = {}
    for record in records:
        known = unique.setdefault(record.source_id, record)
        unique[record.source_id] = max(known, record, key=lambda each: each.rank)
    assert sum(hour.tokens.output for hour in hours) == sum(
        record.tokens.output for record in unique.values()
    )


@pytest.mark.parametrize("read", [read_inference, read_spend_logs])
def test_a_huge_file_is_refused(tmp_path, read):
    """A file beyond the bound is not read."""
    huge = tmp_path / "huge.csv"
    with huge.open("wb") as file:
        file.truncate(600 * 1024 * 1024)
    with pytest.raises(FileTooLarge):
        read(huge)
