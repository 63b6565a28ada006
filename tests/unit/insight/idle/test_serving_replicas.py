"""Warm replicas judged together: by the busiest minutes and one in reserve, never from what nobody
saw.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.insight.idle.serving_replicas import (
    Replicas,
    assess_service,
    count_replicas,
    service_name,
)

WEEK = 7 * 1440


def week(busy, held=10):
    return Replicas(np.full(WEEK, held), np.asarray(busy, dtype=np.int64), float(held))


def test_what_the_busiest_minutes_do_not_need_is_spare():
    busy = np.ones(WEEK, dtype=int)
    busy[: WEEK // 50] = 3
    busy[: WEEK // 500] = 9
    made = assess_service(week(busy))
    assert (made.held, made.peak, made.needed, made.spare) == (10, 3, 4, 6)


def test_a_service_that_needs_all_has_nothing_to_spare():
    assert assess_service(week(np.full(WEEK, 10))).spare == 0
    assert assess_service(week(np.full(WEEK, 9))).spare == 0
    assert assess_service(week(np.zeros(WEEK), held=1)).spare == 0


def test_without_enough_known_there_is_no_verdict():
    unseen = Replicas(np.full(WEEK, 7), np.zeros(WEEK, dtype=np.int64), 10.0)
    young = Replicas(np.full(1439, 10), np.zeros(1439, dtype=np.int64), 10.0)
    assert assess_service(unseen).spare is None
    assert assess_service(young).spare is None
    assert assess_service(count_replicas([], 0.0)).spare is None


@given(
    parts=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 900)), min_size=1, max_size=8),
    held=st.integers(8, 20),
)
def test_never_more_spare_than_the_quiet_replicas(parts, held):
    """In 99 of 100 minutes what is left over suffices."""
    busy = np.concatenate(
        [np.full(1440, parts[0][0]), *(np.full(length, count) for count, length in parts)]
    )
    made = assess_service(Replicas(np.full(len(busy), held), busy, float(held)))
    assert 0 <= made.spare <= held
    assert np.mean(np.array(busy) <= made.needed) >= 0.99


@pytest.mark.parametrize(
    ("name", "tags", "service"),
    [
        ("chat-api-7d9f8b6c5-x2x9z", {}, "chat-api"),
        ("vllm-12", {}, "vllm"),
        ("chat-api", {}, "chat-api"),
        ("rerank-serving", {}, "rerank-serving"),
        ("p-1", {"app": "search"}, "search"),
        ("7", {}, "7"),
        ("triton-a1b2c", {}, "triton"),
    ],
)
def test_replicas_belong_to_a_service(name, tags, service):
    assert service_name(name, tags) == service
