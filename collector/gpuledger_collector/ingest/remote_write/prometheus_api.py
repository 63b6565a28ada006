"""Read raw samples from the HTTP API of a Prometheus, in answers of bounded size.

A range selector in an instant query returns samples as they were scraped, each with its own
timestamp. `query_range` would repeat the last sample at every step for five minutes, so that a
missing scrape could not be told from a good one.
"""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

import msgspec

from gpuledger_collector.accounting.period import Period
from gpuledger_common.escapes import escape_text
from gpuledger_common.http_exchange import AnswerTooLarge, BoundedConnection

MAX_ANSWER = 8 * 1024 * 1024
"""Bytes of one answer; decoded it takes about six times as much."""
TIMEOUT_S = 120.0
_LOGIN = {401, 403}
_OVERLOADED = {413, 422, 503, 504}
"""Statuses of a query that loads too many samples or takes too long: a shorter one may work."""
_MAX_REASON = 200


class BadAddress(Exception):
    """What was given is no address of a Prometheus, or it does not let us in; the message is a
    sentence.
    """


class NoAnswer(Exception):
    """The Prometheus cannot be reached, or fails; the message is a sentence."""


class TooLarge(Exception):
    """An answer exceeds the bound of this side or of the server: ask for less.

    The message is the server's reason.
    """


class RawSeries(msgspec.Struct):
    """A series with its samples: unix seconds and the value as text."""

    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Matrix(msgspec.Struct):
    result: list[RawSeries] = []


class _Samples(msgspec.Struct):
    status: str
    data: _Matrix = msgspec.field(default_factory=_Matrix)
    error: str = ""


class _Labels(msgspec.Struct):
    status: str
    data: list[dict[str, str]] = []
    error: str = ""


@dataclass(frozen=True)
class PrometheusApi:
    """The API below an address such as http://prometheus:9090; a user and password in it are sent
    as a login.
    """

    address: str = field(repr=False)
    token: str = field(default="", repr=False)
    context: ssl.SSLContext | None = None

    @property
    def name(self) -> str:
        """The address without a password."""
        scheme, _, rest = self.address.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2].rstrip('/')}"

    def samples(self, selector: str, period: Period) -> list[RawSeries]:
        """The samples of all series that match, by their labels.

        Raises BadAddress, NoAnswer, TooLarge.
        """
        # The left end belongs to a range of Prometheus 2 and not to one of Prometheus 3; callers
        # drop what is outside.
        query = {"query": f"{selector}[{period.ms}ms]", "time": f"{(period.end_ms - 1) / 1000:.3f}"}
        answer: _Samples = self._ask("query", query, _Samples)
        return answer.data.result

    def series(self, selector: str, period: Period) -> list[dict[str, str]]:
        """The labels of all series that match and have samples in a period.

        Raises BadAddress, NoAnswer, TooLarge.
        """
        query = {
            "match[]": selector,
            "start": f"{period.start_ms / 1000:.3f}",
            "end": f"{(period.end_ms - 1) / 1000:.3f}",
        }
        answer: _Labels = self._ask("series", query, _Labels)
        return answer.data

    def _ask(self, path: str, query: Mapping[str, str], kind: type[Any]) -> Any:
        status, body = self._post(f"/api/v1/{path}", urlencode(query).encode())
        try:
            answer = msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError:
            answer = None
        if status in _LOGIN:
            raise BadAddress(
                f"{self.name}/api/v1/{path} answers {status}: it wants a login; --token-file FILE"
                " has its bearer token, or write http://USER:PASSWORD@HOST"
            )
        reason = "" if answer is None else escape_text(answer.error)[:_MAX_REASON]
        if status in _OVERLOADED:
            raise TooLarge(
                f"{self.name}/api/v1/{path} answers {status}: {reason or 'no reason given'}"
            )
        if answer is None and status < 500:
            raise BadAddress(
                f"{self.name} is no Prometheus: /api/v1/{path} answers {status} without its JSON"
            )
        if answer is None or answer.status != "success":
            raise NoAnswer(
                f"{self.name}/api/v1/{path} answers {status}: {reason or 'no reason given'}"
            )
        return answer

    def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and bounded body of an answer."""
        connection, prefix = self._connection()
        try:
            answer = connection.exchange("POST", prefix + path, body, self._headers())
        except AnswerTooLarge as error:
            raise TooLarge(
                f"{self.name} answers more than {MAX_ANSWER // 1024 // 1024} MiB"
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswer(f"{self.name} gives no answer: {_reason(error)}") from error
        finally:
            connection.close()
        return answer.status, answer.body

    def _connection(self) -> tuple[BoundedConnection, str]:
        """A connection, not yet opened, and the path before `/api`. Raises BadAddress."""
        try:
            parts = urlsplit(self.address)
            host, _ = parts.hostname or "", parts.port  # which raises for a port that is none
        except ValueError:
            host = ""
        if not host or parts.scheme not in {"http", "https"} or parts.query or parts.fragment:
            raise BadAddress(
                f"{self.name} is no address of a Prometheus; write http://prometheus:9090"
            )
        context = self.context
        connection = BoundedConnection(
            parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
            timeout_s=TIMEOUT_S,
            max_bytes=MAX_ANSWER,
            tls=ssl.create_default_context if context is None else lambda: context,
        )
        return connection, parts.path.rstrip("/")

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/x-www-form-urlencoded", "User-Agent": "gpuledger"}
        login = urlsplit(self.address).netloc.rpartition("@")[0]
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        elif login:
            headers["Authorization"] = f"Basic {base64.b64encode(unquote(login).encode()).decode()}"
        return headers


def any_of(names: Sequence[str]) -> str:
    """A selector of the series with any of these names."""
    return f'{{__name__=~"{"|".join(names)}"}}'


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message}; --ca-file FILE names the authority of its certificate"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip()
