"""The collector's settings: a TOML file and `GPULEDGER_*` in the environment, which wins; none is needed.

One frozen dataclass is the whole truth: its fields are the known keys (upper case after `GPULEDGER_` in the
environment), their types are checked, and an unknown key is an error that names the nearest known one. Secrets are
read from files, never from arguments.
"""

from __future__ import annotations

import base64
import dataclasses
import difflib
import ipaddress
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PREFIX = "GPULEDGER_"
AGENT_PREFIX = "GPULEDGER_AGENT_"
"""Names that belong to the agent on a machine that runs both."""
_TRUE = {"1", "true", "yes", "on"}
SHORTEST_SECRET = 32
_FALSE = {"0", "false", "no", "off"}


class SettingsError(Exception):
    """A setting cannot be used; the message names where it stands and what is wrong."""

    permanent = True


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its default. Durations are seconds, sizes bytes."""

    dsn: str = field(default="", metadata={"help": "Postgres 15 to 18 to use; empty: the embedded one"})
    dsn_file: Path | None = field(default=None, metadata={"help": "file that holds the DSN, for its password's sake"})
    data_dir: Path = field(default=Path(), metadata={"help": "folder of the embedded database"})
    embedded_user: str = field(default="", metadata={"help": "user of the embedded server when started by root"})
    listen: str = field(default="127.0.0.1:8440", metadata={"help": "address and port of the HTTP server"})
    agent_token_file: Path | None = field(
        default=None,
        metadata={"help": "tokens of all agents, one a line; in the file only: GPULEDGER_AGENT_* is the agent's"},
    )
    reader_token_file: Path | None = field(default=None, metadata={"help": "bearer tokens of readers, one a line"})
    require_tokens: bool = field(
        default=False, metadata={"help": "ask for tokens of `gpuledger token` also on loopback and before one was made"}
    )
    identity_header: str = field(
        default="", metadata={"help": "header in which a trusted proxy names the person it verified; empty: none is"}
    )
    trusted_proxies: str = field(
        default="", metadata={"help": "addresses or networks, separated by commas, whose identity_header is believed"}
    )
    tls_certificate_file: Path | None = field(default=None, metadata={"help": "PEM certificate chain"})
    tls_key_file: Path | None = field(default=None, metadata={"help": "PEM private key"})
    allow_plain_http: bool = field(default=False, metadata={"help": "listen beyond loopback without TLS"})
    writers: int = field(
        default=1, metadata={"help": "database connections that write batches; one makes the largest groups"}
    )
    flush_batches: int = field(default=256, metadata={"help": "most batches in one transaction"})
    queue_batches: int = field(default=4096, metadata={"help": "batches that may wait before 503"})
    queue_bytes: int = field(default=256 * 1024 * 1024, metadata={"help": "decoded bytes that may wait before 503"})
    node_samples_per_second: int = field(
        default=10_000,
        metadata={"help": "samples and usage intervals of one node; bursts of a minute are taken; 0: any"},
    )
    node_bytes_per_second: int = field(
        default=2 * 1024 * 1024, metadata={"help": "bytes of bodies of one node; bursts of a minute are taken; 0: any"}
    )
    node_inflated_bytes_per_second: int = field(
        default=8 * 1024 * 1024,
        metadata={"help": "the same after decompression; bursts of a minute are taken; 0: any"},
    )
    node_names_per_second: int = field(
        default=500,
        metadata={"help": "accelerators and workloads that one node lists; bursts of a minute are taken; 0: any"},
    )
    node_new_names_per_hour: int = field(
        default=20_000, metadata={"help": "accelerators and workloads of one node that are new to a collector; 0: any"}
    )
    node_new_days_per_hour: int = field(
        default=200,
        metadata={"help": "days of samples and of usage of one node that are new to a collector; 0: any"},
    )
    least_free_bytes: int = field(
        default=256 * 1024 * 1024,
        metadata={"help": "free bytes on the disk of the embedded database, below which /readyz says 503; 0: any"},
    )
    max_evidence_age_days: int = field(
        default=37,
        metadata={
            "help": "age of the oldest evidence that agents and remote write may send, 37 days or more: agents hold 35;"
            " 0: any, for replays and simulations. Older evidence comes by import"
        },
    )
    remote_write_samples_per_second: int = field(
        default=200_000,
        metadata={"help": "samples of one sender of remote write; bursts of a minute are taken; 0: any"},
    )
    most_connections: int = field(default=20_000, metadata={"help": "HTTP connections at once; others are closed"})
    remote_write_window_seconds: int = field(
        default=3600, metadata={"help": "how much older than its GPU's newest a scrape of remote write may be"}
    )
    remote_write_gap_seconds: int = field(
        default=150, metadata={"help": "longest interval between two scrapes that counts as seen, at most 300"}
    )
    jobs: bool = field(default=True, metadata={"help": "run the scheduled jobs in this process"})
    fold_seconds: int = field(default=30, metadata={"help": "how often new evidence is folded into hours and minutes"})
    rate_seconds: int = field(default=60, metadata={"help": "how often changed days are rated"})
    idle_seconds: int = field(default=300, metadata={"help": "how often idle accelerators are looked for"})
    anomaly_seconds: int = field(default=600, metadata={"help": "how often spending is judged"})
    recommend_seconds: int = field(default=21_600, metadata={"help": "how often recommendations are made"})
    scaling_seconds: int = field(default=300, metadata={"help": "how often capacity is decided on and judged"})
    scaling_gauge_delay_seconds: int = field(
        default=0, metadata={"help": "lead time of the scaling advice on /metrics, such as 600; 0: none there"}
    )
    energy_rate: str = field(
        default="", metadata={"help": "price of a kilowatt-hour, such as `0.21 EUR`; empty: energy has no price"}
    )
    energy_pue: str = field(default="1", metadata={"help": "power usage effectiveness of the building, 1 or more"})
    pack_after_days: int = field(
        default=3, metadata={"help": "days after which samples are packed: a weekend's late ones are there by then"}
    )
    keep_archive_days: int = field(default=0, metadata={"help": "days that packed samples are kept; 0: for ever"})
    keep_usage_interval_days: int = field(
        default=0, metadata={"help": "days that evidence of closed periods is kept, 39 or more; 0: for ever"}
    )
    keep_batches_days: int = field(
        default=37, metadata={"help": "days that keys of batches are kept, 37 or more: agents may send for 35"}
    )
    keep_series_days: int = field(
        default=400, metadata={"help": "days that five-minute series of owners are kept; 0: for ever"}
    )
    keep_node_utilization_days: int = field(
        default=400, metadata={"help": "days that the heat of nodes is kept by quarters of an hour; 0: for ever"}
    )
    keep_minute_days: int = field(
        default=37,
        metadata={
            "help": "days that readings are kept by the minute, 30 or more; 0: for ever. Before, boards of nodes and "
            "workloads, what held a run back and how active it was are unknown; the heat of nodes, usage and money stay"
        },
    )
    keep_state_days: int = field(
        default=14,
        metadata={"help": "days that changes of slow metrics are kept, and the last one before; 0: for ever"},
    )
    keep_finding_days: int = field(
        default=400, metadata={"help": "days that findings are kept after they ended, 60 or more; 0: for ever"}
    )
    series_seconds: int = field(default=300, metadata={"help": "how often changed days are drawn as series again"})
    budget_seconds: int = field(default=300, metadata={"help": "how often budgets are held against what was charged"})
    send_seconds: int = field(default=20, metadata={"help": "how often waiting messages are sent"})
    mail_server: str = field(default="", metadata={"help": "HOST:PORT of the SMTP server for mails"})
    mail_security: str = field(default="starttls", metadata={"help": "starttls, tls or none"})
    mail_user: str = field(default="", metadata={"help": "login at the mail server; empty: none"})
    mail_password_file: Path | None = field(default=None, metadata={"help": "file with the password of mail_user"})
    mail_ca_file: Path | None = field(
        default=None, metadata={"help": "PEM certificates to trust instead of the system's"}
    )
    mail_from: str = field(default="gpuledger@localhost", metadata={"help": "address that mails come from"})
    mail_dir: Path | None = field(default=None, metadata={"help": "folder for mails as .eml files instead of a server"})
    mail_resend_unconfirmed: bool = field(
        default=False, metadata={"help": "send again, rather than report, a mail whose taking nobody heard of"}
    )
    hooks_file: Path | None = field(default=None, metadata={"help": "TOML file of chat and webhook addresses, by name"})
    notification_seconds: int = field(
        default=300, metadata={"help": "how often owners of idle GPUs are written to, where [[contact]] says who"}
    )
    actions: bool = field(
        default=False, metadata={"help": "do what [[action]] opted in to; false: only show it (gpuledger actions)"}
    )
    kubernetes_api: str = field(default="", metadata={"help": "https address of the API server that evicts pods"})
    kubernetes_token_file: Path | None = field(default=None, metadata={"help": "its token; read anew for each request"})
    kubernetes_ca_file: Path | None = field(default=None, metadata={"help": "PEM certificates of its authority"})
    public_url: str = field(
        default="", metadata={"help": "address at which people reach this server, for links in mails"}
    )
    link_secret_file: Path | None = field(
        default=None, metadata={"help": "secret of 32 characters or more that signs links in mails; empty: no links"}
    )
    leave_seconds: int = field(
        default=3,
        metadata={"help": "how long SIGTERM has /readyz say 503 before it stops; 0 with the bundled database, always"},
    )
    drain_seconds: int = field(default=20, metadata={"help": "how long SIGTERM waits for requests under way"})
    log_level: str = field(default="info", metadata={"help": "debug, info, warning or error"})
    log_format: str = field(default="console", metadata={"help": "console or json"})

    @property
    def listen_host(self) -> str:
        """The address part of `listen`, without brackets."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def listen_port(self) -> int:
        """The port part of `listen`."""
        return int(self.listen.rpartition(":")[2])

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.listen_host)

    def proxy_networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The networks of `trusted_proxies`. Raises ValueError for what is none."""
        return tuple(ipaddress.ip_network(text.strip()) for text in self.trusted_proxies.split(",") if text.strip())

    def database_dsn(self) -> str | None:
        """The DSN of an outside database, from its file if one is named; None for the embedded one."""
        if self.dsn_file is not None:
            return read_secret(self.dsn_file, "dsn_file")
        return self.dsn or None

    def agent_tokens(self) -> frozenset[str]:
        """The tokens that agents may present; empty when none is asked for."""
        if self.agent_token_file is None:
            return frozenset()
        tokens = frozenset(read_secret(self.agent_token_file, "agent_token_file").split())
        if not tokens:
            raise SettingsError(f"agent_token_file: {self.agent_token_file} holds no token")
        return tokens

    def reader_tokens(self) -> frozenset[str] | None:
        """The tokens that readers may present; empty: none is asked for, on loopback; None: nobody may read."""
        if self.reader_token_file is None:
            return frozenset() if self.on_loopback else None
        tokens = frozenset(read_secret(self.reader_token_file, "reader_token_file").split())
        if not tokens:
            raise SettingsError(f"reader_token_file: {self.reader_token_file} holds no token")
        return tokens


FIELDS = {entry.name: entry for entry in dataclasses.fields(Settings)}


def load(config: Path | None, environment: Mapping[str, str], home: Path) -> Settings:
    """Settings from the file (if any) and the environment. Raises SettingsError, one sentence for each fault."""
    faults: list[str] = []
    given: dict[str, Any] = {}
    if config is not None:
        for key, value in read_toml(config).items():
            _take(given, key, value, f"{config}: {key}", faults, sorted(FIELDS))
    known = {PREFIX + name.upper(): name for name in FIELDS}
    for name, text in environment.items():
        if name.startswith(PREFIX) and not name.startswith(AGENT_PREFIX):
            _take(given, known.get(name, name), text, name, faults, sorted(known))
    if faults:
        raise SettingsError("; ".join(faults))
    if "data_dir" not in given:
        given["data_dir"] = default_data_dir(environment, home)
    settings = Settings(**given)
    check(settings)
    return settings


def default_data_dir(environment: Mapping[str, str], home: Path) -> Path:
    """The user's data folder for this program (XDG base directories)."""
    base = environment.get("XDG_DATA_HOME")
    return (Path(base) if base else home / ".local/share") / "gpuledger"


def read_toml(path: Path) -> dict[str, Any]:
    """The keys of a TOML file. Raises SettingsError with file and place."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}") from error


def read_secret(path: Path, name: str) -> str:
    """The content of a secret's file, stripped. Raises SettingsError naming the setting, never the content."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "is not text"
        raise SettingsError(f"{name}: {path} cannot be read ({said})") from error


def _take(given: dict[str, Any], key: str, value: object, where: str, faults: list[str], known: list[str]) -> None:
    if key not in FIELDS:
        near = difflib.get_close_matches(where.rpartition(" ")[2], known, n=1, cutoff=0.0)
        faults.append(f"{where} is not a setting; the nearest one is {near[0]}")
        return
    try:
        given[key] = convert(key, value)
    except ValueError as error:
        faults.append(f"{where}: {error}")


def convert(key: str, value: object) -> object:
    """A value of TOML or of the environment as the field's type. Raises ValueError with the reason."""
    wanted = str(FIELDS[key].type)
    if wanted == "bool":
        return _as_bool(value)
    if wanted == "int":
        return _as_int(value)
    text = _as_text(value)
    return Path(text).expanduser() if wanted.startswith("Path") else text


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"{value!r} is not a text")


def _as_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise ValueError(f"{value!r} is neither true nor false")


def _as_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    raise ValueError(f"{value!r} is not a whole number")


def is_loopback(host: str) -> bool:
    """Whether the host names this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_POSITIVE = (
    "writers",
    "flush_batches",
    "queue_batches",
    "queue_bytes",
    "most_connections",
    "fold_seconds",
    "rate_seconds",
    "remote_write_window_seconds",
    "remote_write_gap_seconds",
    "budget_seconds",
    "notification_seconds",
    "scaling_seconds",
    "send_seconds",
    "pack_after_days",
    "series_seconds",
)
LEAST_USAGE_INTERVAL_DAYS = 39
"""An agent may hold 35 days; two more as for the batch ledger, one whole day, and one that usage intervals reach into.
"""

LEAST_EVIDENCE_DAYS = 37
"""An agent may hold a batch for 35 days, rollups included; two more, so that nothing is refused for a slow clock."""

LEAST_MINUTE_DAYS = 30
"""Recommendations read the minutes of 28 days; and the search for idle accelerators goes back a few hours more."""

LEAST_FINDING_DAYS = 60
"""The searches look back 42 days, and compare what they find with what they found."""

LEAST_BATCH_DAYS = 37
"""An agent may hold a batch for 35 days, rollups included; two more, so that what it sends again is known."""


def check(settings: Settings) -> None:
    """Raise SettingsError for values that contradict each other or their range."""
    faults = [f"{name}: must be 1 or more" for name in _POSITIVE if getattr(settings, name) < 1]
    host, colon, port = settings.listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        faults.append(f"listen: {settings.listen!r} is not ADDRESS:PORT, such as 127.0.0.1:8440")
    elif not settings.on_loopback:
        faults += _beyond_loopback(settings)
    if (settings.tls_certificate_file is None) != (settings.tls_key_file is None):
        faults.append("tls_certificate_file and tls_key_file: give both or none")
    if settings.log_level not in {"debug", "info", "warning", "error"}:
        faults.append(f"log_level: {settings.log_level!r} is not debug, info, warning or error")
    if settings.log_format not in {"console", "json"}:
        faults.append(f"log_format: {settings.log_format!r} is not console or json")
    faults += _mail_faults(settings)
    faults += _proxy_faults(settings)
    faults += _retention_faults(settings)
    if settings.remote_write_gap_seconds > 300:
        faults.append("remote_write_gap_seconds: is over 300")
    if settings.dsn and settings.dsn_file is not None:
        faults.append("dsn and dsn_file: give one of them")
    if faults:
        raise SettingsError("; ".join(faults))


def _retention_faults(settings: Settings) -> list[str]:
    faults = []
    if settings.keep_archive_days and settings.keep_archive_days <= settings.pack_after_days:
        faults.append(f"keep_archive_days: must be 0 (for ever) or over pack_after_days, {settings.pack_after_days}")
    if settings.keep_usage_interval_days and settings.keep_usage_interval_days < LEAST_USAGE_INTERVAL_DAYS:
        faults.append(
            f"keep_usage_interval_days: must be 0 (for ever) or at least {LEAST_USAGE_INTERVAL_DAYS}, as agents may "
            "still hold them"
        )
    if settings.keep_batches_days < LEAST_BATCH_DAYS:
        faults.append(
            f"keep_batches_days: must be {LEAST_BATCH_DAYS} or more, or a batch that an agent sends again counts twice"
        )
    if settings.max_evidence_age_days and settings.max_evidence_age_days < LEAST_EVIDENCE_DAYS:
        faults.append(
            f"max_evidence_age_days: must be 0 (any age) or {LEAST_EVIDENCE_DAYS} and more: agents may still hold it"
        )
    if settings.keep_series_days < 0:
        faults.append("keep_series_days: must be 0 (for ever) or more")
    if settings.keep_node_utilization_days < 0:
        faults.append("keep_node_utilization_days: must be 0 (for ever) or more")
    if settings.keep_minute_days and settings.keep_minute_days < LEAST_MINUTE_DAYS:
        faults.append(
            f"keep_minute_days: must be 0 (for ever) or at least {LEAST_MINUTE_DAYS}: recommendations read a month"
        )
    if settings.keep_state_days < 0:
        faults.append("keep_state_days: must be 0 (for ever) or more")
    if settings.keep_finding_days and settings.keep_finding_days < LEAST_FINDING_DAYS:
        faults.append(
            f"keep_finding_days: must be 0 (for ever) or at least {LEAST_FINDING_DAYS}: searches go back to them"
        )
    return faults


def _beyond_loopback(settings: Settings) -> list[str]:
    faults = []
    if settings.agent_token_file is None and not settings.require_tokens:
        faults.append(
            f"listen: {settings.listen} is reachable from outside, which needs agent_token_file, "
            "or require_tokens = true and tokens made by gpuledger token create"
        )
    if settings.tls_certificate_file is None and not settings.allow_plain_http:
        faults.append(
            f"listen: {settings.listen} is reachable from outside, which needs tls_certificate_file and tls_key_file "
            "(or allow_plain_http = true behind a proxy that ends TLS)"
        )
    return faults


def _proxy_faults(settings: Settings) -> list[str]:
    faults = []
    if bool(settings.identity_header) != bool(settings.trusted_proxies):
        faults.append("identity_header and trusted_proxies: give both or none")
    if settings.identity_header and not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", settings.identity_header):
        faults.append(f"identity_header: {settings.identity_header!r} is not a header such as X-Auth-Request-Email")
    if settings.identity_header.lower() in {"authorization", "cookie", "host"}:
        faults.append(f"identity_header: {settings.identity_header} has another meaning")
    try:
        wide = [network for network in settings.proxy_networks() if network.prefixlen == 0]
        faults += [f"trusted_proxies: {network} is everybody" for network in wide]
    except ValueError as error:
        faults.append(f"trusted_proxies: {error}")
    return faults


def _mail_faults(settings: Settings) -> list[str]:
    faults = []
    host, _, port = settings.mail_server.rpartition(":")
    if settings.mail_server and (not host or not port.isdigit() or int(port) > 65535):
        faults.append(f"mail_server: {settings.mail_server!r} is not HOST:PORT, such as mail.example.com:587")
    if settings.mail_server and settings.mail_dir is not None:
        faults.append("mail_server and mail_dir: give one of them")
    if settings.mail_security not in {"starttls", "tls", "none"}:
        faults.append(f"mail_security: {settings.mail_security!r} is not starttls, tls or none")
    if bool(settings.mail_user) != (settings.mail_password_file is not None):
        faults.append("mail_user and mail_password_file: give both or none")
    if settings.mail_user and settings.mail_security == "none" and not is_loopback(host.strip("[]")):
        faults.append("mail_security: none would send the password of mail_user in clear")
    if settings.link_secret_file is not None and not re.fullmatch(r"https?://[!-~]+", settings.public_url):
        faults.append("link_secret_file: links need public_url, such as https://gpuledger.example.com")
    if bool(settings.kubernetes_api) != (settings.kubernetes_token_file is not None):
        faults.append("kubernetes_api and kubernetes_token_file: give both or none")
    if settings.kubernetes_api and not re.fullmatch(r"https://[!-~]+", settings.kubernetes_api):
        faults.append("kubernetes_api: is not an address such as https://kubernetes.default.svc")
    if not re.fullmatch(r"[!-?A-~]+@[A-Za-z0-9.-]+", settings.mail_from):
        faults.append(f"mail_from: {settings.mail_from!r} is not a mail address")
    return faults


def read_link_secret(path: Path) -> bytes:
    """The secret that signs links. Raises SettingsError when it is too short to be one."""
    secret = read_secret(path, "link_secret_file").encode()
    if len(secret) < SHORTEST_SECRET:
        raise SettingsError(f"link_secret_file: {path} must hold {SHORTEST_SECRET} characters or more")
    return secret


@dataclass(frozen=True, slots=True)
class HookTarget:
    """A chat or webhook: its address, what its messages are signed with, whether it may lie in a private network."""

    address: str = field(repr=False)
    secret: bytes | None = field(default=None, repr=False)
    private: bool = False


def read_hooks(path: Path | None) -> dict[str, HookTarget]:
    """Chats and webhooks by name: an address, or a table with `address`, `secret_file` and `private`.

    Raises SettingsError; never tells an address, for it is a secret.
    """
    if path is None:
        return {}
    found = {}
    for name, given in read_toml(path).items():
        table = given if isinstance(given, dict) else {"address": given}
        if strange := set(table) - {"address", "secret_file", "private"}:
            raise SettingsError(f"{path}: {name}: {min(strange)} is not known; known are address, secret_file, private")
        address, private = table.get("address"), table.get("private", False)
        place = urlsplit(address) if isinstance(address, str) else None
        if place is None or not place.hostname or place.username is not None:
            raise SettingsError(f"{path}: {name} is not an address such as https://hooks.example.com/services/...")
        if place.scheme != "https" and not (place.scheme == "http" and is_loopback(place.hostname)):
            raise SettingsError(f"{path}: {name} must be https:// (or http:// on this machine)")
        if not isinstance(private, bool):
            raise SettingsError(f"{path}: {name}: private is neither true nor false")
        found[name] = HookTarget(str(address), _hook_secret(path, name, table.get("secret_file")), private)
    return found


def _hook_secret(path: Path, name: str, file: object) -> bytes | None:
    """The secret of a hook; `whsec_` and base64 as Standard Webhooks write it, or any text of 24 characters."""
    if file is None:
        return None
    text = read_secret(path.parent / str(file), f"{path}: {name}: secret_file")
    if text.startswith("whsec_"):
        try:
            return base64.b64decode(text.removeprefix("whsec_"), validate=True)
        except ValueError as error:
            raise SettingsError(f"{path}: {name}: secret_file holds no base64 after whsec_") from error
    if len(text) < 24:
        raise SettingsError(f"{path}: {name}: secret_file must hold 24 characters or more")
    return text.encode()
