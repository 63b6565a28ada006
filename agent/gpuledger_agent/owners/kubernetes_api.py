"""Facts on a node's pods that pod-resources does not have, from the API server: UID, phase, labels,
namespace labels.

`GET /api/v1/pods?fieldSelector=spec.nodeName=NODE` with a service account's token, which is read
anew each time because the kubelet rotates it. Needs `list` on pods, on namespaces for their labels,
and on resourceslices where devices are allocated by claims.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
_PAGE = 100


class ApiFailed(AgentError):
    """The API server gave no usable answer; the message says why."""


class NoSuchResource(ApiFailed):
    """The API server does not serve this version of a resource."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod as the API server has it.

    `ended`: its phase is Succeeded or Failed, so it no longer holds anything.
    """

    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ended: bool = False


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class _Attribute(msgspec.Struct):
    text: str | None = msgspec.field(default=None, name="string")


class _Attributes(msgspec.Struct):
    attributes: dict[str, _Attribute] | None = None


class _Device(msgspec.Struct):
    name: str = ""
    attributes: dict[str, _Attribute] | None = None
    basic: _Attributes | None = None

    @property
    def uuid(self) -> str | None:
        """The driver's attribute `uuid`; the v1beta1 API has the attributes one level down."""
        attributes = (
            self.attributes or (self.basic.attributes if self.basic is not None else None) or {}
        )
        return next(
            (value.text for name, value in attributes.items() if name.rpartition("/")[2] == "uuid"),
            None,
        )


class _Pool(msgspec.Struct):
    name: str = ""


class _Spec(msgspec.Struct):
    driver: str = ""
    pool: _Pool = msgspec.field(default_factory=_Pool)
    devices: list[_Device] | None = None


class _Item(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


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


class ApiServer:
    """Asks an API server; `account` is a folder with `token` and `ca.crt`."""

    def __init__(self, url: str, account: Path, timeout_s: float = 2.0) -> None:
        self._url, self._account, self._timeout_s = urlsplit(url), account, timeout_s

    def pods(self, node: str) -> dict[tuple[str, str], PodFacts]:
        """Facts by (namespace, name) of the pods bound to a node. Raises ApiFailed."""
        return {
            (item.metadata.namespace, item.metadata.name): PodFacts(
                item.metadata.uid,
                item.metadata.labels or {},
                item.status.phase in {"Succeeded", "Failed"},
            )
            for item in self._list(
                "/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"}, _Item
            )
        }

    def namespaces(self) -> dict[str, Mapping[str, str]]:
        """Labels by namespace. Raises ApiFailed."""
        return {
            item.metadata.name: item.metadata.labels or {}
            for item in self._list("/api/v1/namespaces", {}, _Item)
        }

    def pending(self, kind: type[Item]) -> list[Item]:
        """Every pending pod of the cluster, with the fields that `kind` reads. Raises ApiFailed."""
        return list(self._list("/api/v1/pods", {"fieldSelector": "status.phase=Pending"}, kind))

    def device_uuids(self, node: str) -> dict[tuple[str, str, str], str]:
        """UUIDs by (driver, pool, device) of the devices that DRA drivers offer on a node.

        Raises ApiFailed.
        """
        selector = {"fieldSelector": f"spec.nodeName={node}"}
        try:
            items = list(self._list("/apis/resource.k8s.io/v1/resourceslices", selector, _Item))
        except NoSuchResource:
            items = list(
                self._list("/apis/resource.k8s.io/v1beta1/resourceslices", selector, _Item)
            )
        return {
            (item.spec.driver, item.spec.pool.name, device.name): device.uuid
            for item in items
            for device in item.spec.devices or ()
            if device.uuid
        }

    def _list(self, path: str, query: Mapping[str, str], kind: type[Item]) -> Iterator[Item]:
        next_page, until = "", time.monotonic() + LIST_S
        for _ in range(MAX_PAGES):
            position = {"continue": next_page} if next_page else {}
            page = self._page(
                f"{path}?{urlencode({**query, 'limit': str(_PAGE), **position})}", until, kind
            )
            yield from page.items or ()
            next_page = page.metadata.next
            if not next_page:
                return
        raise ApiFailed(f"{path}: more than {MAX_PAGES} pages")

    def _page(self, target: str, until: float, kind: type[Item]) -> _ListPage[Item]:
        resource = f"API server {self._url.netloc}{target.partition('?')[0]}"
        try:
            token = (self._account / "token").read_text(encoding="ascii").strip()
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
            connection = BoundedConnection(
                f"https://{self._url.netloc}",
                timeout_s=max(0.0, min(self._timeout_s, until - time.monotonic())),
                max_bytes=MAX_PAGE_BYTES,
                tls=partial(ssl.create_default_context, cafile=str(self._account / "ca.crt")),
            )
            with contextlib.closing(connection):
                answer = connection.exchange("GET", target, headers=headers)
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
        ) as error:  # ValueError: a malformed token or CA
            raise ApiFailed(f"{resource}: {error or type(error).__name__}") from error
        if answer.status == http.client.NOT_FOUND:
            raise NoSuchResource(f"{resource}: there is no such resource")
        if answer.status != http.client.OK:
            raise ApiFailed(f"{resource}: HTTP status {answer.status}")
        try:
            page: _ListPage[Item] = msgspec.json.decode(answer.body, type=_ListPage[kind])  # type: ignore[valid-type]
            return page
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiFailed(f"{resource}: {error}") from error
