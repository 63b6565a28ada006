"""Two hooks that LiteLLM's proxy loads in place of its own database, whose engine no package index
has.

`authenticate` (its `custom_auth`) knows the keys of LITELLM_STAND_KEYS, as JSON: key -> [alias,
team or null]. `spend_logs` (a callback) writes a row of "LiteLLM_SpendLogs" for each request that
LiteLLM counts, built by LiteLLM's own `get_logging_payload`, into the database of
LITELLM_STAND_DSN. Only the INSERT is ours; like LiteLLM's own it skips a row that is there.
"""

import asyncio
import json
import os

import psycopg
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import UserAPIKeyAuth, hash_token
from litellm.proxy.spend_tracking.spend_tracking_utils import get_logging_payload
from psycopg import sql

KEYS = json.loads(os.environ["LITELLM_STAND_KEYS"])
TABLE = "LiteLLM_SpendLogs"


async def authenticate(request, api_key):
    """Raises KeyError for an unknown key, which the proxy answers by 401."""
    alias, team = KEYS[api_key]
    return UserAPIKeyAuth(
        api_key=hash_token(api_key), key_alias=alias, team_id=team, team_alias=team
    )


class SpendLogs(CustomLogger):
    """Writes a row for each request that ended with an answer, or whose client went away."""

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        row = get_logging_payload(kwargs, response_obj, start_time, end_time)
        await asyncio.to_thread(insert, row)


def insert(row):
    """Insert the fields for which the table has a column; instants are UTC without a zone, as Prisma
    writes them.
    """
    with psycopg.connect(os.environ["LITELLM_STAND_DSN"], options="-c timezone=UTC") as connection:
        columns = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0",
            (f'"{TABLE}"',),
        )
        names = [name for (name,) in columns if name in row]
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT DO NOTHING").format(
            sql.Identifier(TABLE),
            sql.SQL(", ").join(map(sql.Identifier, names)),
            sql.SQL(", ").join(sql.Placeholder() * len(names)),
        )
        connection.execute(statement, [row[name] for name in names])


spend_logs = SpendLogs()
