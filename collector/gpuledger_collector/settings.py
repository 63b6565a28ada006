"""The collector's settings: a TOML file and `GPULEDGER_*` in the environment, which wins; none is
needed.

The fields of `Settings` are the known keys, each with its default, its help and its bounds; the
reference page is made from them. Secrets are read from files, never from arguments.

It is a dataclass rather than a pydantic model because every command reads it: importing pydantic
and building a model of these fields takes 95 ms of CPU, this module 25 ms.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger_common.bounded_file import read_secret_file
from gpuledger_common.settings import SettingsError, given_settings

log = logging.getLogger(__name__)

PREFIX = "GPULEDGER_"
AGENT_PREFIX = "GPULEDGER_AGENT_"
"""Names that belong to the agent on a machine that runs both."""
MIN_LINK_SECRET = 32
QUEUE_SCHEDULERS = ("kueue", "volcano", "kai")
"""Kubernetes schedulers whose queues can be read."""
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


def setting(
    default: Any,
    about: str,
    least: int = 0,
    most: int | None = None,
    or_zero: bool = False,
    choices: str = "",
) -> Any:
    """A field with what its values may be: whole numbers from `least` to `most`, also 0 if
    `or_zero`; or `choices`.
    """
    bounds = {"least": least, "most": most, "or_zero": or_zero, "choices": choices.split()}
    return dataclasses.field(default=default, metadata={"help": about, **bounds})


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its default. Durations are seconds, sizes bytes."""

    dsn: str = setting("", "Postgres 15 to 18 to use; empty: the embedded one")
    dsn_file: Path | None = setting(
        None, "file with the DSN, to keep its password out of the environment"
    )
    data_dir: Path = setting(Path(), "folder of the embedded database")
    embedded_user: str = setting("", "user of the embedded server when started by root")
    listen: str = setting("127.0.0.1:8440", "address and port of the HTTP server")
    agent_token_file: Path | None = setting(
        None, "tokens of all agents, one a line; has no variable: GPULEDGER_AGENT_* is the agent's"
    )
    reader_token_file: Path | None = setting(None, "bearer tokens of readers, one a line")
    require_tokens: bool = setting(
        False, "require tokens of `gpuledger token` on loopback too, and before any exists"
    )
    identity_header: str = setting(
        "", "header in which a trusted proxy names the verified person; empty: none"
    )
    trusted_proxies: str = setting(
        "", "addresses or networks of trusted proxies, separated by commas"
    )
    tls_certificate_file: Path | None = setting(None, "PEM certificate chain")
    tls_key_file: Path | None = setting(None, "PEM private key")
    allow_plain_http: bool = setting(False, "listen beyond loopback without TLS")
    mcp: bool = setting(
        False, "answer assistants at /mcp (Model Context Protocol; needs the extra mcp)"
    )
    mcp_hosts: str = setting(
        "",
        "host names (NAME or NAME:PORT) by which assistants reach /mcp, besides loopback and that"
        " of public_url",
    )
    mcp_token_file: Path | None = setting(
        None, "reader's token of `gpuledger mcp`; empty: it reads all of the database that it opens"
    )
    workers: int = setting(
        0, "processes that serve; 0: one on fewer than 4 cores, else a half, at most 4", most=32
    )
    page_seconds: int = setting(
        30, "how long a page or an answer to a reader may take before 503; 0: any time"
    )
    max_connections: int = setting(
        20_000, "HTTP connections of a worker at once; others are closed", least=1
    )

    writers: int = setting(
        1, "database connections that write batches; one makes the largest groups", least=1
    )
    flush_batches: int = setting(256, "most batches in one transaction", least=1)
    queue_batches: int = setting(4096, "batches that may wait in a worker before 503", least=1)
    queue_bytes: int = setting(
        256 * 1024 * 1024, "decoded bytes that may wait in a worker before 503", least=1
    )
    node_samples_per_second: int = setting(
        10_000, "samples and usage intervals of a node; a minute's burst passes; 0: any"
    )
    node_bytes_per_second: int = setting(
        2 * 1024 * 1024, "bytes of a node's requests; a minute's burst passes; 0: any"
    )
    node_inflated_bytes_per_second: int = setting(8 * 1024 * 1024, "the same, decompressed; 0: any")
    node_names_per_second: int = setting(
        500, "accelerators and workloads that a node lists; a minute's burst passes; 0: any"
    )
    node_new_names_per_hour: int = setting(
        20_000, "accelerators and workloads of a node that are new to a collector; 0: any"
    )
    node_new_days_per_hour: int = setting(
        200, "days of a node's samples and usage that are new to a collector; 0: any"
    )
    node_new_owners_per_hour: int = setting(
        1000,
        "owners (teams, projects, accounts, users) and pools of a node that are new to a collector;"
        " 0: any",
    )
    node_queue_readings_per_hour: int = setting(
        720, "readings of schedulers' queues that a node, or a token for any node, may send; 0: any"
    )
    node_queue_bytes_per_hour: int = setting(
        64 * 1024 * 1024,
        "bytes that its queue readings may store, summed by owner and pool; 0: any",
    )
    min_free_bytes: int = setting(
        256 * 1024 * 1024,
        "free disk of the embedded database, below which /readyz says 503; 0: any",
    )
    # An agent may hold a batch for 35 days, rollups included; two more, so that no slow clock loses
    # anything.
    max_evidence_age_days: int = setting(
        37,
        "age of the oldest evidence that is accepted, imports aside; 0: any, for replays",
        least=37,
        or_zero=True,
    )
    remote_write_samples_per_second: int = setting(
        200_000, "samples of a sender; a minute's burst passes; 0: any"
    )
    exporter_profiles: str = setting(
        "",
        "files with profiles of exporters and gateways of your own, separated by commas",
    )
    gateway_nodes: str = setting(
        "", "nodes whose agents may report tokens of gateways, separated by commas; *: any"
    )
    remote_write_window_seconds: int = setting(
        3600, "how much older than its GPU's newest a scrape may be", least=1
    )
    remote_write_gap_seconds: int = setting(
        150, "longest interval between two scrapes that counts as seen", least=1, most=300
    )

    jobs: bool = setting(True, "run the scheduled jobs, in a process of their own")
    roll_up_seconds: int = setting(
        30, "how often new evidence is rolled up into hours and minutes", least=1
    )
    rate_seconds: int = setting(60, "how often changed days are rated", least=1)
    idle_seconds: int = setting(
        300, "how often idle accelerators are searched for; 0: by command alone"
    )
    anomaly_seconds: int = setting(
        600, "how often spending is searched for anomalies; 0: by command alone"
    )
    recommend_seconds: int = setting(
        21_600, "how often recommendations are computed; 0: by command alone"
    )
    scaling_seconds: int = setting(
        300, "how often capacity is decided and past decisions are judged", least=1
    )
    scaling_gauge_delay_seconds: int = setting(
        0, "lead time of the scaling advice on /metrics, such as 600; 0: none"
    )
    series_seconds: int = setting(
        300, "how often the series of changed days are computed again", least=1
    )
    budget_seconds: int = setting(300, "how often budgets are compared with charges", least=1)
    energy_rate: str = setting(
        "", "price of a kilowatt-hour, such as `0.21 EUR`; empty: energy has no price"
    )
    energy_pue: str = setting("1", "power usage effectiveness of the building, 1 or more")

    pack_after_days: int = setting(
        3, "days after which samples are packed, late ones of a weekend included", least=1
    )
    keep_archive_days: int = setting(0, "days that packed samples are kept; 0: for ever")
    # 35 days that an agent may hold it, two as for batches, one whole day, and one that usage
    # intervals reach into.
    keep_usage_interval_days: int = setting(
        0, "days that evidence of closed periods is kept; 0: for ever", least=39, or_zero=True
    )
    # 35 days that an agent may hold a batch, and two more: a batch whose key is unknown would count
    # twice.
    keep_batches_days: int = setting(
        37, "days that keys of batches are kept, to recognize those sent again", least=37
    )
    keep_series_days: int = setting(
        400, "days that five-minute series of owners are kept; 0: for ever"
    )
    keep_node_utilization_days: int = setting(
        400, "days that quarter-hours of node utilization are kept; 0: for ever"
    )
    # Recommendations read the minutes of 28 days, and the search for idle accelerators reads a few
    # hours more.
    keep_minute_days: int = setting(
        37,
        "days that readings are kept by the minute, for runs and boards; 0: for ever",
        least=30,
        or_zero=True,
    )
    keep_state_days: int = setting(
        14, "days that changes of slow metrics are kept, and the last before; 0: for ever"
    )
    # The searches look back 42 days, and compare what they find with earlier findings.
    keep_finding_days: int = setting(
        400, "days that findings are kept after they ended; 0: for ever", least=60, or_zero=True
    )

    # A month is imported again until its close, and a gateway's database keeps some months.
    keep_token_request_days: int = setting(
        100,
        "days that ids of model requests are kept, to count none twice; 0: for ever",
        least=35,
        or_zero=True,
    )

    send_seconds: int = setting(20, "how often waiting messages are sent", least=1)
    notification_seconds: int = setting(
        300, "how often owners of idle GPUs are notified, by [[contact]] tables", least=1
    )
    mail_server: str = setting("", "HOST:PORT of the SMTP server for mails")
    mail_security: str = setting("starttls", "starttls, tls or none", choices="starttls tls none")
    mail_user: str = setting("", "login at the mail server; empty: none")
    mail_password_file: Path | None = setting(None, "file with the password of mail_user")
    mail_ca_file: Path | None = setting(None, "PEM certificates to trust instead of the system's")
    mail_from: str = setting("gpuledger@localhost", "address that mails come from")
    mail_dir: Path | None = setting(None, "folder for mails as .eml files instead of a server")
    mail_resend_unconfirmed: bool = setting(
        False, "send mails with unconfirmed delivery again, rather than report them"
    )
    hooks_file: Path | None = setting(None, "TOML file of chat and webhook addresses, by name")
    actions: bool = setting(
        False, "carry out what [[action]] tables opt in to; false: only show it (gpuledger actions)"
    )
    kubernetes_api: str = setting(
        "",
        "https address of the API server that evicts pods and is asked for queues; empty: nothing"
        " is evicted, and queues are those of the collector's own cluster",
    )
    kubernetes_token_file: Path | None = setting(None, "its token; read again for each request")
    kubernetes_ca_file: Path | None = setting(None, "PEM certificates of its authority")
    kubernetes_queues: str = setting(
        "",
        "schedulers whose queues and quotas are read once a minute, of kueue, volcano and kai,"
        " separated by commas; empty: none",
    )
    kubernetes_cluster: str = setting(
        "", "name of the cluster, before the names of queues where there are several; empty: one"
    )
    public_url: str = setting("", "address at which people reach this server, for links in mails")
    grafana_url: str = setting("", "address of the Grafana with the boards: pages link to them")
    link_secret_file: Path | None = setting(
        None, "secret of 32 characters or more that signs links in mails; empty: no links"
    )

    shutdown_delay_seconds: int = setting(
        3, "how long /readyz says 503 after SIGTERM; always 0 with the bundled database"
    )
    drain_seconds: int = setting(20, "how long SIGTERM waits for requests in progress")
    log_level: str = setting(
        "info", "debug, info, warning or error", choices="debug info warning error"
    )
    log_format: str = setting("console", "console or json", choices="console json")

    @property
    def listen_host(self) -> str:
        """The address part of `listen`, without brackets."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def listen_port(self) -> int:
        """The port part of `listen`."""
        return int(self.listen.rpartition(":")[2])

    @property
    def gateway_node_names(self) -> frozenset[str]:
        """The nodes of `gateway_nodes`."""
        return frozenset(filter(None, (text.strip() for text in self.gateway_nodes.split(","))))

    @property
    def queue_schedulers(self) -> tuple[str, ...]:
        """The schedulers of `kubernetes_queues`, each once."""
        named = (text.strip() for text in self.kubernetes_queues.split(","))
        return tuple(dict.fromkeys(filter(None, named)))

    @property
    def profile_files(self) -> tuple[Path, ...]:
        """The files of `exporter_profiles`."""
        return tuple(
            Path(text.strip()).expanduser()
            for text in self.exporter_profiles.split(",")
            if text.strip()
        )

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.listen_host)

    def proxy_networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The networks of `trusted_proxies`. Raises ValueError for a text that is no network."""
        return tuple(
            ipaddress.ip_network(text.strip())
            for text in self.trusted_proxies.split(",")
            if text.strip()
        )

    def database_dsn(self) -> str | None:
        """The DSN of an external database, from its file if one is named; None for the embedded
        one.
        """
        if self.dsn_file is not None:
            return read_secret(self.dsn_file, "dsn_file")
        return self.dsn or None

    def agent_tokens(self) -> frozenset[str]:
        """The tokens that agents may present; empty when none is required."""
        return (
            frozenset()
            if self.agent_token_file is None
            else _read_tokens(self.agent_token_file, "agent_token_file")
        )

    def reader_tokens(self) -> frozenset[str] | None:
        """The tokens that readers may present; empty: none is required, on loopback; None: reading
        is not allowed.
        """
        if self.reader_token_file is not None:
            return _read_tokens(self.reader_token_file, "reader_token_file")
        return frozenset() if self.on_loopback else None


FIELDS = {field.name: field for field in dataclasses.fields(Settings)}


def load(config: Path | None, environment: Mapping[str, str], home: Path) -> Settings:
    """Settings from the file (if any) and the environment.

    Raises SettingsError, one sentence for each fault.
    """
    given, faults = given_settings(config, environment, sorted(FIELDS), PREFIX, AGENT_PREFIX)
    values: dict[str, Any] = {"data_dir": default_data_dir(environment, home)}
    for written in given:
        try:
            values[written.name] = convert(written.name, written.value)
        except ValueError as error:
            faults.append(f"{written.place}: {error}")
    settings = Settings(**values)
    places = {written.name: written.place for written in given}
    # What cannot be read has its default here: a fault that names it would be a second one about
    # the same line.
    readable = [
        fault
        for fault in check_faults(settings)
        if _named_setting(fault) not in places.keys() - values
    ]
    faults += [_with_place(fault, places) for fault in readable]
    if faults:
        raise SettingsError("; ".join(faults))
    return settings


def _named_setting(fault: str) -> str:
    return fault.partition(":")[0]


def _with_place(fault: str, places: Mapping[str, str]) -> str:
    """The fault with the file and line, or the variable, that gave the setting which it names."""
    name, _, reason = fault.partition(":")
    return f"{places[name]}:{reason}" if name in places else fault


def default_data_dir(environment: Mapping[str, str], home: Path) -> Path:
    """The user's data folder for this program (XDG base directories)."""
    base = environment.get("XDG_DATA_HOME")
    return (Path(base) if base else home / ".local/share") / "gpuledger"


def read_secret(path: Path, name: str) -> str:
    """The content of a secret's file, stripped.

    Raises SettingsError with the name of the setting.
    """
    try:
        return read_secret_file(path, lambda sentence: log.warning("%s: %s", name, sentence))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        raise SettingsError(f"{name}: {path} cannot be read ({reason})") from error


def _read_tokens(path: Path, name: str) -> frozenset[str]:
    tokens = frozenset(read_secret(path, name).split())
    if not tokens:
        raise SettingsError(f"{name}: {path} holds no token")
    return tokens


def read_link_secret(path: Path) -> bytes:
    """The secret that signs links. Raises SettingsError when it is too short to be one."""
    secret = read_secret(path, "link_secret_file").encode()
    if len(secret) < MIN_LINK_SECRET:
        raise SettingsError(
            f"link_secret_file: {path} must hold {MIN_LINK_SECRET} characters or more"
        )
    return secret


def convert(name: str, value: object) -> object:
    """A value of TOML or of the environment as the field's type.

    Raises ValueError with the reason.
    """
    kind, text = str(FIELDS[name].type), str(value)
    if kind == "bool":
        if isinstance(value, bool | str) and text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise ValueError(f"{value!r} is neither true nor false")
    if kind == "int":
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.isascii() and value.isdigit():
            return int(value)
        raise ValueError(f"{value!r} is not a whole number")
    if isinstance(value, str):
        return Path(value).expanduser() if kind.startswith("Path") else value
    raise ValueError(f"{value!r} is not a text")


def is_loopback(host: str) -> bool:
    """Whether the host names this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check(settings: Settings) -> None:
    """Raise SettingsError for values that are out of range or contradict each other, one sentence
    for each.
    """
    if faults := check_faults(settings):
        raise SettingsError("; ".join(faults))


def check_faults(settings: Settings) -> list[str]:
    """A sentence for each value that is out of range or contradicts another."""
    checks = (
        _check_bounds,
        _check_addresses,
        _check_pairs,
        _check_mail,
        _check_proxies,
        _check_hosts,
    )
    faults = [fault for each in checks for fault in each(settings)]
    if settings.keep_archive_days and settings.keep_archive_days <= settings.pack_after_days:
        faults.append(
            "keep_archive_days: must be 0 (for ever) or over pack_after_days,"
            f" {settings.pack_after_days}"
        )
    return faults


def _check_bounds(settings: Settings) -> list[str]:
    faults = []
    for name, field in FIELDS.items():
        value, bounds = getattr(settings, name), field.metadata
        if bounds["choices"] and value not in bounds["choices"]:
            faults.append(
                f"{name}: {value!r} is not {', '.join(bounds['choices'][:-1])} or"
                f" {bounds['choices'][-1]}"
            )
        if field.type != "int" or (value == 0 and bounds["or_zero"]):
            continue
        if value < bounds["least"]:
            zero = "0 or " if bounds["or_zero"] else ""
            faults.append(f"{name}: must be {zero}at least {bounds['least']} ({bounds['help']})")
        if bounds["most"] is not None and value > bounds["most"]:
            faults.append(f"{name}: must be at most {bounds['most']} ({bounds['help']})")
    return faults


def _check_addresses(settings: Settings) -> list[str]:
    if not _is_host_and_port(settings.listen):
        return [f"listen: {settings.listen!r} is not ADDRESS:PORT, such as 127.0.0.1:8440"]
    if settings.on_loopback:
        return []
    faults = []
    if settings.agent_token_file is None and not settings.require_tokens:
        faults.append(
            f"listen: {settings.listen} is reachable from outside, which needs agent_token_file, "
            "or require_tokens = true and tokens made by gpuledger token create"
        )
    if settings.tls_certificate_file is None and not settings.allow_plain_http:
        faults.append(
            f"listen: {settings.listen} is reachable from outside, which needs tls_certificate_file"
            " and tls_key_file (or allow_plain_http = true behind a proxy that ends TLS)"
        )
    return faults


def _is_host_and_port(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdigit() and int(port) <= 65535


def _check_pairs(settings: Settings) -> list[str]:
    """Settings that need each other, and settings that exclude each other."""
    both_or_none = (
        ("tls_certificate_file", "tls_key_file"),
        ("identity_header", "trusted_proxies"),
        ("mail_user", "mail_password_file"),
        ("kubernetes_api", "kubernetes_token_file"),
    )
    at_most_one = (("dsn", "dsn_file"), ("mail_server", "mail_dir"))

    def has(name: str) -> bool:
        return bool(getattr(settings, name))

    faults = [f"{a} and {b}: give both or none" for a, b in both_or_none if has(a) != has(b)]
    return faults + [f"{a} and {b}: give one of them" for a, b in at_most_one if has(a) and has(b)]


def _check_proxies(settings: Settings) -> list[str]:
    faults = []
    if settings.identity_header and not re.fullmatch(
        r"[A-Za-z][A-Za-z0-9-]*", settings.identity_header
    ):
        faults.append(
            f"identity_header: {settings.identity_header!r} is not a header such as"
            " X-Auth-Request-Email"
        )
    if settings.identity_header.lower() in {"authorization", "cookie", "host"}:
        faults.append(f"identity_header: {settings.identity_header} has another meaning")
    try:
        wide = [network for network in settings.proxy_networks() if network.prefixlen == 0]
        faults += [f"trusted_proxies: {network} is everybody" for network in wide]
    except ValueError as error:
        faults.append(f"trusted_proxies: {error}")
    return faults


def _check_hosts(settings: Settings) -> list[str]:
    hosts = [text.strip() for text in settings.mcp_hosts.split(",") if text.strip()]
    return [
        f"mcp_hosts: {host!r} is not NAME or NAME:PORT, such as gpuledger.example.com"
        for host in hosts
        if not re.fullmatch(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:]+\](:[0-9]{1,5})?", host)
    ]


def _check_mail(settings: Settings) -> list[str]:
    """Mails, the links in them, and the API server."""
    faults = []
    if settings.mail_server and not _is_host_and_port(settings.mail_server):
        faults.append(
            f"mail_server: {settings.mail_server!r} is not HOST:PORT, such as mail.example.com:587"
        )
    host = settings.mail_server.rpartition(":")[0].strip("[]")
    if settings.mail_user and settings.mail_security == "none" and not is_loopback(host):
        faults.append("mail_security: none would send the password of mail_user in clear")
    if not re.fullmatch(r"[!-?A-~]+@[A-Za-z0-9.-]+", settings.mail_from):
        faults.append(f"mail_from: {settings.mail_from!r} is not a mail address")
    if settings.link_secret_file is not None and not re.fullmatch(
        r"https?://[!-~]+", settings.public_url
    ):
        faults.append(
            "link_secret_file: links need public_url, such as https://gpuledger.example.com"
        )
    if settings.grafana_url and not re.fullmatch(r"https?://[!-~]+", settings.grafana_url):
        faults.append("grafana_url: is not an address such as https://grafana.example.com")
    unknown = set(settings.queue_schedulers) - set(QUEUE_SCHEDULERS)
    faults += [
        f"kubernetes_queues: {name!r} is none of {', '.join(QUEUE_SCHEDULERS)}"
        for name in sorted(unknown)
    ]
    if settings.kubernetes_api and not re.fullmatch(r"https://[!-~]+", settings.kubernetes_api):
        faults.append("kubernetes_api: is not an address such as https://kubernetes.default.svc")
    return faults
