"""Asks a Kubernetes API server for lists and single objects, page by page, each within a size and a
time. The token of the service account is read anew each time, because the kubelet rotates it.

It only reads: GET, never `watch`. What is asked for stands with who asks.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from gpuledger_common.http_exchange import BoundedConnection
from gpuledger_common.readings import AgentError

MAX_PAGE_BYTES = 16 * 1024 * 1024
MAX_PAGES = 64
LIST_S = 10.0
"""How long a list may take with all its pages."""
PAGE = 100
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has the token of its account, and its cluster's authority."""


class ApiFailed(AgentError):
    """The API server gave no usable answer; the message says why."""


class NoSuchResource(ApiFailed):
    """The API server does not serve this version of a resource."""


class NotAllowed(ApiFailed):
    """The account has no right to ask this: its role lacks a rule."""


class _ListMetadata(msgspec.Struct):
    """The metadata of a list: where it continues."""

    next: str = msgspec.field(default="", name="continue")


Item = TypeVar("Item")


class _ListPage(msgspec.Struct, Generic[Item]):
    items: list[Item] | None = None
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)


def in_cluster_url() -> str | None:
    """The API server's address in the environment of every pod; None outside of a cluster."""
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST"),
        os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    if not host:
        return None
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class KubernetesClient:
    """Asks an API server, as the account of a token.

    `timeout_s` is for one answer, `list_s` for a list of at most `max_pages` pages of `page`
    objects.
    """

    def __init__(
        self,
        url: str,
        token_file: Path,
        ca_file: Path | None,
        timeout_s: float = 2.0,
        *,
        list_s: float = LIST_S,
        page: int = PAGE,
        max_pages: int = MAX_PAGES,
    ) -> None:
        self._url, self._timeout_s = urlsplit(url), timeout_s
        self._token_file, self._ca_file = token_file, ca_file
        self._list_s, self._page_size, self._max_pages = list_s, page, max_pages
        self._connection: BoundedConnection | None = None

    @contextlib.contextmanager
    def connected(self) -> Iterator[BoundedConnection]:
        """Ask everything inside over one connection, which is opened by the first question. For one
        thread.
        """
        if self._connection is not None:
            yield self._connection
            return
        connection = self._connection = BoundedConnection(
            f"https://{self._url.netloc}",
            timeout_s=self._timeout_s,
            max_bytes=MAX_PAGE_BYTES,
            tls=partial(ssl.create_default_context, cafile=self._ca_file and str(self._ca_file)),
        )
        try:
            with contextlib.closing(connection):
                yield connection
        finally:
            self._connection = None

    def list_all(self, path: str, kind: type[Item]) -> list[Item]:
        """Every object of a resource, with the fields that `kind` reads. Raises ApiFailed."""
        return list(self._list(path, {}, kind))

    def _list(
        self, path: str, query: Mapping[str, str], kind: type[Item], page_size: int | None = None
    ) -> Iterator[Item]:
        """The objects of a list, in pages of `page_size`, or of the size that all have."""
        limit = str(page_size or self._page_size)
        next_page, until = "", time.monotonic() + self._list_s
        with self.connected():
            for _ in range(self._max_pages):
                position = {"continue": next_page} if next_page else {}
                asked = urlencode({**query, "limit": limit, **position})
                page = self._page(f"{path}?{asked}", until, kind)
                yield from page.items or ()
                next_page = page.metadata.next
                if not next_page:
                    return
        raise ApiFailed(f"{path}: more than {self._max_pages} pages")

    def _page(self, target: str, until: float, kind: type[Item]) -> _ListPage[Item]:
        return self._get(target, until, _ListPage[kind])  # type: ignore[valid-type]

    def _get(self, target: str, until: float, kind: type[Item]) -> Item:
        resource = f"API server {self._url.netloc}{target.partition('?')[0]}"
        try:
            token = self._token_file.read_text(encoding="ascii").strip()
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
            with self.connected() as connection:
                connection.timeout_s = max(0.0, min(self._timeout_s, until - time.monotonic()))
                answer = connection.exchange("GET", target, headers=headers)
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
        ) as error:  # ValueError: a malformed token or CA
            raise ApiFailed(f"{resource}: {error or type(error).__name__}") from error
        if answer.status == http.client.NOT_FOUND:
            raise NoSuchResource(f"{resource}: there is no such resource")
        if answer.status == http.client.FORBIDDEN:
            raise NotAllowed(f"{resource}: HTTP status {answer.status}")
        if answer.status != http.client.OK:
            raise ApiFailed(f"{resource}: HTTP status {answer.status}")
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiFailed(f"{resource}: {error}") from error
