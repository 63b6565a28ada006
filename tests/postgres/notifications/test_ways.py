"""Eviction as Kubernetes does it, and hooks that are signed, that wait as asked, and that reach no
private network.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jsonschema_rs
import pytest

from fakes.apiserver import TOKEN, certificates
from fakes.mail import message
from gpuledger_collector.config.hooks import read_hooks
from gpuledger_collector.insight.notifications.messages import Content, Message
from gpuledger_collector.insight.notifications.reclaim_rules import ReclaimAction
from gpuledger_collector.notifications.addresses import is_public
from gpuledger_collector.notifications.reclaim import KubernetesBackend, NotReclaimed
from gpuledger_collector.notifications.transport import NotAccepted
from gpuledger_collector.notifications.webhooks import WebhookTransport, adaptive_card
from gpuledger_common import http_exchange
from gpuledger_common.settings import SettingsError

POD = {"namespace": "vision", "pod": "notebook-0", "uid": "uid-1", "user": "ada"}
PATH = "/api/v1/namespaces/vision/pods/notebook-0"


class Api(ThreadingHTTPServer):
    """An API server as far as pods and evictions go: tokens, UID preconditions, a disruption
    budget.
    """

    daemon_threads = True

    def __init__(self, folder) -> None:
        super().__init__(("127.0.0.1", 0), Evictions)
        leaf, key = certificates(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(leaf, key)
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        self.pods = {
            PATH: {"metadata": {"name": "notebook-0", "namespace": "vision", "uid": "uid-1"}}
        }
        self.evicted: list[str] = []
        self.disrupted = False

    def handle_error(self, request, client_address) -> None:
        """A client that does not trust us hangs up: no noise."""


class Evictions(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Api

    def do_GET(self) -> None:
        pod = self.server.pods.get(self.path)
        self._answer(404, _status(404, "pods not found")) if pod is None else self._answer(200, pod)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.removesuffix("/eviction")
        pod = self.server.pods.get(path)
        if body["apiVersion"] != "policy/v1" or body["kind"] != "Eviction" or path == self.path:
            self._answer(400, _status(400, "no Eviction"))
        elif pod is None:
            self._answer(404, _status(404, "pods not found"))
        elif body["deleteOptions"]["preconditions"]["uid"] != pod["metadata"]["uid"]:
            self._answer(409, _status(409, "Precondition failed: UID"))
        elif self.server.disrupted:
            self._answer(
                429,
                _status(429, "Cannot evict pod as it would violate the pod's disruption budget."),
            )
        else:
            self.server.evicted.append(body["metadata"]["name"])
            pod["metadata"]["deletionTimestamp"] = "2026-11-21T09:20:00Z"
            self._answer(201, _status(201, ""))

    def _answer(self, status: int, body: object) -> None:
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            status, body = 401, _status(401, "Unauthorized")
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_arguments: object) -> None:
        pass


def _status(code: int, sentence: str) -> dict[str, object]:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "message": sentence}


@pytest.fixture
def api(tmp_path) -> Iterator[tuple[Api, KubernetesBackend]]:
    """The server, and our way to it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    server = Api(tmp_path)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    address = f"https://127.0.0.1:{server.server_port}"
    try:
        yield server, KubernetesBackend(address, lambda: TOKEN, str(tmp_path / "ca.crt"))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def action(**more: str) -> ReclaimAction:
    return ReclaimAction(1, "k", 1, "evict", {**POD, **more}, "vision", "doing", 0, 0)


def test_a_pod_is_evicted_once(api) -> None:
    """It is there; it is evicted; from then on it is gone, and nobody evicts it again."""
    server, way = api
    assert not way.is_gone(action())
    assert way.reclaim(action()) == "evicted vision/notebook-0"
    assert way.is_gone(action())
    assert server.evicted == ["notebook-0"]


def test_a_pod_that_came_again_under_its_name_is_left_alone(api) -> None:
    """A StatefulSet's next pod has another UID: it is not the one that was judged."""
    server, way = api
    server.pods[PATH]["metadata"]["uid"] = "uid-2"
    assert way.is_gone(action())
    with pytest.raises(NotReclaimed, match="409") as caught:
        way.reclaim(action())
    assert caught.value.permanent
    assert server.evicted == []


def test_a_disruption_budget_is_kept(api) -> None:
    """429: not now; it is asked again later."""
    server, way = api
    server.disrupted = True
    with pytest.raises(NotReclaimed, match="disruption budget") as caught:
        way.reclaim(action())
    assert not caught.value.permanent


def test_a_server_that_we_cannot_trust_or_that_refuses_us_gets_nothing(api) -> None:
    """A certificate of nobody, and a token that is refused."""
    server, way = api
    with pytest.raises(NotReclaimed, match="certificate"):
        KubernetesBackend(way.address, lambda: TOKEN).reclaim(action())
    with pytest.raises(NotReclaimed, match="401"):
        KubernetesBackend(way.address, lambda: "other", way.ca_file).is_gone(action())
    with pytest.raises(NotReclaimed, match="UID of the pod"):
        way.reclaim(action(uid=""))
    assert server.evicted == []
    assert TOKEN not in repr(way)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "198.18.0.1",
        "192.0.2.1",
        "::1",
        "::",
        "fe80::1%eth0",
        "fd00::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a00:1",
        "2002:a00:1::",
        "2001:db8::1",
    ],
)
def test_no_hook_reaches_a_private_address(address, monkeypatch) -> None:
    """Whatever a name stands for: nothing is connected to, and nothing is tried again."""
    assert not is_public(address)
    monkeypatch.setattr(
        http_exchange.socket, "getaddrinfo", lambda *_a, **_k: [(2, 1, 6, "", (address, 443))]
    )
    monkeypatch.setattr(http_exchange._Socket, "connect", lambda *_a: pytest.fail("connected"))
    with pytest.raises(NotAccepted, match="private network") as caught:
        WebhookTransport("webhook", {"ops": "https://hooks.example.com/x"}).deliver(
            message(recipient="webhook:ops"), lambda: None
        )
    assert caught.value.permanent


def test_a_name_is_resolved_once(monkeypatch) -> None:
    """What it stands for a moment later (rebinding) is not asked for: the judged address is
    connected to.
    """
    answers = iter(["8.8.8.8", "10.0.0.1"])
    connected = []
    monkeypatch.setattr(
        http_exchange.socket, "getaddrinfo", lambda *_a, **_k: [(2, 1, 6, "", (next(answers), 443))]
    )

    def connect(_socket, place):
        connected.append(place)
        raise OSError("unplugged")

    monkeypatch.setattr(http_exchange._Socket, "connect", connect)
    with pytest.raises(NotAccepted, match="unplugged"):
        WebhookTransport("webhook", {"ops": "https://hooks.example.com/x"}).deliver(
            message(recipient="webhook:ops"), lambda: None
        )
    assert connected == [("8.8.8.8", 443)]
    assert is_public("2606:4700::1111")


def test_a_webhook_is_signed_and_waits_as_asked() -> None:
    """Standard Webhooks: anybody with the secret can check id, instant and body; 503 with
    Retry-After is kept.
    """
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if len(seen) == 1 else 503)
            self.send_header("Retry-After", "1800")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        hook = WebhookTransport(
            "webhook",
            {"erp": f"http://127.0.0.1:{server.server_port}/"},
            secrets={"erp": b"s" * 24},
            clock=lambda: 1_795_252_800,
        )
        hook.deliver(message(recipient="webhook:erp"), lambda: None)
        with pytest.raises(NotAccepted) as caught:
            hook.deliver(message(recipient="webhook:erp"), lambda: None)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    headers, body = seen[0]
    signed = f"{headers['webhook-id']}.1795252800.".encode() + body
    mac = base64.b64encode(hmac.new(b"s" * 24, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{mac}"
    assert headers["webhook-timestamp"] == "1795252800"
    assert (caught.value.wait_s, caught.value.permanent) == (1800, False)
    assert "ssss" not in repr(hook)


def test_a_chat_shows_text_as_it_is() -> None:
    """No mention of everybody, no link but ours, no end of the code block."""
    content = Content(
        "<!channel> a & b", "```<https://x|y>", link="https://gpuledger.example.com/ack?x=1"
    )
    text = json.loads(
        WebhookTransport("slack", {})._body(Message("k", "idle", "slack:ops", content, 0, 0))
    )["text"]
    assert "<!channel>" not in text
    assert text.count("```") == 2
    assert text.endswith("<https://gpuledger.example.com/ack?x=1|Answer it>")


CARD = {
    "type": "object",
    "required": ["type", "attachments"],
    "additionalProperties": False,
    "properties": {
        "type": {"const": "message"},
        "attachments": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["contentType", "contentUrl", "content"],
                "properties": {
                    "contentType": {"const": "application/vnd.microsoft.card.adaptive"},
                    "contentUrl": {"type": "null"},
                    "content": {
                        "type": "object",
                        "required": ["$schema", "type", "version", "body"],
                        "properties": {
                            "type": {"const": "AdaptiveCard"},
                            "version": {"enum": ["1.2", "1.3", "1.4", "1.5"]},
                            "body": {
                                "type": "array",
                                "minItems": 2,
                                "items": {"$ref": "#/$defs/block"},
                            },
                            "actions": {
                                "type": "array",
                                "minItems": 1,
                                "items": {"$ref": "#/$defs/action"},
                            },
                        },
                    },
                },
            },
        },
    },
    "$defs": {
        "block": {
            "type": "object",
            "required": ["type", "inlines"],
            "additionalProperties": False,
            "properties": {
                "type": {"const": "RichTextBlock"},
                "spacing": {"enum": ["None", "Medium"]},
                "inlines": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "additionalProperties": False,
                        "properties": {
                            "type": {"const": "TextRun"},
                            "text": {"type": "string", "minLength": 1},
                            "fontType": {"enum": ["Default", "Monospace"]},
                            "size": {"enum": ["Default", "Small"]},
                            "weight": {"enum": ["Default", "Bolder"]},
                        },
                    },
                },
            },
        },
        "action": {
            "type": "object",
            "required": ["type", "title", "url"],
            "additionalProperties": False,
            "properties": {
                "type": {"const": "Action.OpenUrl"},
                "title": {"type": "string"},
                "url": {"type": "string", "pattern": "^https?://"},
            },
        },
    },
}
"""The part of Microsoft's message and of the Adaptive Card schema (1.2 to 1.5) that our cards use.
"""


def test_teams_gets_an_adaptive_card() -> None:
    """In the message that a Workflow of Teams takes: the text line by line, a button for the page
    and the answer.
    """
    page, link = "https://gpuledger.example.com/jobs/48211", "https://gpuledger.example.com/ack?x=1"
    content = Content(
        "4 GPUs of *train* idle",
        "They cost USD 5.\n\n  since  9 Nov\n  cost   USD 5\n",
        link=link,
        page=page,
    )
    body = WebhookTransport("teams", {})._body(Message("k", "idle", "teams:ops", content, 0, 0))
    message = json.loads(body)
    jsonschema_rs.validate(CARD, message)
    card = message["attachments"][0]["content"]
    assert [block["inlines"][0]["text"] for block in card["body"]] == [
        "4 GPUs of *train* idle",
        "They cost USD 5.",
        "  since  9 Nov",
        "  cost   USD 5",
    ]
    assert [action["url"] for action in card["actions"]] == [page, link]
    assert "actions" not in adaptive_card("Subject", "Text")["attachments"][0]["content"]


def test_a_card_stays_below_what_teams_takes() -> None:
    """28 KB, also where every line is short and every character takes six in JSON."""
    assert len(json.dumps(adaptive_card("é" * 200, "é\n" * 20_000)).encode()) < 28 * 1024
    assert len(json.dumps(adaptive_card("é" * 200, "é" * 20_000)).encode()) < 28 * 1024


def test_a_chat_and_a_program_are_led_to_the_page() -> None:
    """The page first, then the answer; a program gets both under names of their own."""
    content = Content(
        "S", "T", link="https://x.example/ack", page="https://x.example/idle?team=vision"
    )
    made = Message("k", "idle", "slack:ops", content, 0, 0)
    text = json.loads(WebhookTransport("slack", {})._body(made))["text"]
    assert text.splitlines()[1] == "<https://x.example/idle?team=vision|Open the page>"
    body = json.loads(WebhookTransport("webhook", {})._body(made))
    assert (body["page"], body["link"]) == (content.page, content.link)


def test_hooks_with_secrets_are_read(tmp_path) -> None:
    """A secret lies in a file of its own, and a fault names neither it nor the address."""
    (tmp_path / "secret").write_text("whsec_" + base64.b64encode(b"k" * 32).decode())
    (tmp_path / "hooks.toml").write_text(
        'ops = "https://hooks.example.com/T/1"\n[erp]\naddress = "https://erp.internal/x"\nprivate'
        ' = true\nsecret_file = "secret"\n'
    )
    found = read_hooks(tmp_path / "hooks.toml")
    assert (found["erp"].secret, found["erp"].private, found["ops"].private) == (
        b"k" * 32,
        True,
        False,
    )
    assert "erp.internal" not in repr(found)
    (tmp_path / "secret").write_text("short")
    with pytest.raises(SettingsError, match="24 characters") as caught:
        read_hooks(tmp_path / "hooks.toml")
    assert "short" not in str(caught.value)
