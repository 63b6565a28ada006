"""The agent's settings: a TOML file and GPULEDGER_AGENT_* in the environment, which wins; none is
needed.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpuledger_agent.sources import SOURCES
from gpuledger_common.readings import HOUR_MS
from gpuledger_common.settings import SettingsError, given_settings

PREFIX = "GPULEDGER_AGENT_"
MAX_PORT = 65_535
MAX_GATEWAY_INTERVAL_S = 300
"""Between two readings of a gateway: the collector counts nothing over a pause of ten minutes."""
SERVICE_STATE = Path("/var/lib/gpuledger-agent")
"""StateDirectory= of our systemd units."""
KUBERNETES_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
OWNER_SOURCES = ("static", "slurm", "kubernetes", "containers", "processes")
KUBERNETES_READS = ("namespaces", "claims", "node")
_CHOICES = {
    "source": SOURCES,
    "dcgm_names": ("old", "new", "off"),
    "hw_names": ("on", "off"),
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("plain", "json"),
}
_MIN_SECONDS = {
    "sample_interval_s": 0.1,
    "push_interval_s": 1.0,
    "slow_interval_s": 1.0,
    "owner_stale_s": 1.0,
}
_MAX_SECONDS = 3600


def _setting(default: Any, description: str, reloads: bool = False) -> Any:
    """A setting; one that `reloads` changes on SIGHUP, the others need a restart."""
    return field(default=default, metadata={"help": description, "reloads": reloads})


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its default. Durations are seconds."""

    node: str = _setting("", "name of this node; empty: its host name")
    source: str = _setting("nvml", "nvml, exporter, dcgm, simulated or replay")
    target: str = _setting("", "address or file for the sources exporter, dcgm and replay")
    profile: str = _setting(
        "", "profile of the source exporter: a file or an id; empty: the one that fits the page"
    )
    pool: str = _setting(
        "",
        "pool of this node's accelerators; empty: that of the node's labels on Kubernetes, else default",
    )
    collector_url: str = _setting("http://127.0.0.1:8440", "address of the collector", reloads=True)
    token_file: Path | None = _setting(None, "file with this node's token", reloads=True)
    ca_file: Path | None = _setting(
        None, "PEM certificates to trust for the collector", reloads=True
    )
    spool_dir: Path | None = _setting(None, "folder of the spool; empty: the state folder")
    spool_bytes: int = _setting(512 * 1024 * 1024, "largest size of the spool")
    sample_interval_s: float = _setting(10.0, "seconds between samples", reloads=True)
    slow_interval_s: float = _setting(
        60.0, "seconds between samples of the slow tier", reloads=True
    )
    extra_tiers: str = _setting(
        "", "metrics that cost more: gpm-opt, opt-in, or both", reloads=True
    )
    push_interval_s: float = _setting(60.0, "seconds between batches", reloads=True)
    busy_threshold: float = _setting(0.01, "activity above this ratio is busy", reloads=True)
    metrics_listen: str = _setting("127.0.0.1:9440", "address of /metrics; empty: none")
    dcgm_names: str = _setting("old", "dcgm-exporter's names on /metrics: old, new or off")
    hw_names: str = _setting(
        "off", "OpenTelemetry's hw.* names on /metrics as well, which may still change: on or off"
    )
    owners: str = _setting(",".join(OWNER_SOURCES), "owner sources, first match wins")
    owner_rules_file: Path | None = _setting(None, "TOML file with static owner rules")
    slurm_jobs_dir: Path | None = _setting(
        Path("/run/gpuledger/slurm"), "folder of our Slurm prolog's files; empty: none"
    )
    slurm_mapping_dir: Path | None = _setting(
        None, "folder of dcgm-exporter's or jobstats' files, one per GPU; empty: none"
    )
    kubelet_socket: Path | None = _setting(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        "the kubelet's pod-resources socket; empty: none",
    )
    kubernetes_api_url: str = _setting(
        "", "API server to ask for pod labels; empty: that of the cluster; off: none"
    )
    kubernetes_account_dir: Path | None = _setting(
        KUBERNETES_ACCOUNT, "folder with the API server's token and ca.crt"
    )
    kubernetes_reads: str = _setting(
        ",".join(KUBERNETES_READS),
        "what the API server is asked for besides pods: namespaces, claims, node; empty: nothing",
    )
    kubernetes_cluster: str = _setting(
        "", "name of the cluster, before the names of queues where there are several; empty: one"
    )
    ray_clusters: str = _setting(
        "",
        "NAMESPACE/CLUSTER[=URL of the job API] of Ray clusters whose jobs are told apart,"
        " comma-separated; empty: none",
    )
    pod_logs_dir: Path | None = _setting(
        Path("/var/log/pods"),
        "folder whose names contain pod UIDs, for nodes without the API server",
    )
    container_socket: Path | None = _setting(
        None, "socket of docker or podman; empty: the first of their usual ones"
    )
    owner_stale_s: float = _setting(
        120.0,
        "seconds for which known pods and containers count as holders when their source is silent",
    )
    serving_endpoints: str = _setting(
        "", "[WORKLOAD=]URL of inference servers' /metrics, comma-separated; empty: none"
    )
    gateway_endpoints: str = _setting(
        "",
        "[PROFILE=]URL of gateways' /metrics with tokens by tenant, comma-separated; empty: none",
    )
    progress_dir: Path | None = _setting(
        None, "folder of files in which runs report steps and tokens; empty: none"
    )
    seed: int = _setting(7, "seed of the simulated fleet")
    given_back_ms: int = _setting(
        0, "instant (unix ms) at which the simulated fleet releases its reservations; 0: never"
    )
    log_level: str = _setting("info", "debug, info, warning or error", reloads=True)
    log_format: str = _setting("plain", "plain or json", reloads=True)

    @property
    def node_name(self) -> str:
        """The name that this node reports under."""
        return self.node or socket.gethostname()

    @property
    def owner_sources(self) -> tuple[str, ...]:
        """Names of the owner sources, in order."""
        return _split_list(self.owners)

    @property
    def kubernetes_parts(self) -> tuple[str, ...]:
        """What the API server is asked for besides pods."""
        return _split_list(self.kubernetes_reads)

    @property
    def extra(self) -> tuple[str, ...]:
        """Names of the extra tiers."""
        return _split_list(self.extra_tiers)

    @property
    def spool_folder(self) -> Path:
        """The folder of the spool: the setting, systemd's state folder, or the user's state folder."""
        if self.spool_dir is not None:
            return self.spool_dir
        state = os.environ.get("STATE_DIRECTORY")
        if state:
            return Path(state.split(":")[0])
        home = os.environ.get("XDG_STATE_HOME")
        if home:
            return Path(home) / "gpuledger-agent"
        try:
            return Path.home() / ".local/state/gpuledger-agent"
        except RuntimeError:  # no HOME, and a user id without a name, as in many containers
            raise SettingsError(
                "spool_dir: this user has no home folder, so it must be set"
            ) from None

    @property
    def agent_folder(self) -> Path:
        """The state folder of this machine's agent, for commands run by people: that of our systemd
        unit if it exists.

        Raises SettingsError when this user may not write there.
        """
        if (
            self.spool_dir is not None
            or "STATE_DIRECTORY" in os.environ
            or not os.path.lexists(SERVICE_STATE)
        ):
            return self.spool_folder
        if not os.access(SERVICE_STATE, os.W_OK | os.X_OK):
            raise SettingsError(f"{SERVICE_STATE} belongs to the agent's service: run this as root")
        return SERVICE_STATE

    @property
    def token_path(self) -> Path | None:
        """The token's file: the setting, or systemd's credential `token` unless it is empty, as our
        units ship it.
        """
        if self.token_file is not None:
            return self.token_file
        credentials = os.environ.get("CREDENTIALS_DIRECTORY")
        candidate = Path(credentials) / "token" if credentials else None
        return (
            candidate
            if candidate is not None and candidate.is_file() and candidate.read_text().strip()
            else None
        )


FIELDS = {entry.name: entry for entry in fields(Settings)}


def load(config: Path | None, environment: Mapping[str, str], **options: Any) -> Settings:
    """Settings from the file, the environment and the command line (None: not given), in ascending
    priority.

    Raises SettingsError with every fault.
    """
    # Environment entries come after those of the file, so a later value of the same name wins.
    given, faults = given_settings(config, environment, FIELDS, PREFIX)
    values: dict[str, Any] = {}
    for setting in given:
        kind = str(FIELDS[setting.name].type)
        try:
            values[setting.name] = _convert(kind, setting.value)
        except (TypeError, ValueError, RuntimeError):  # RuntimeError: a ~user that does not exist
            faults.append(
                f"{setting.place}: {setting.value!r} is not a {kind.partition(' ')[0].lower()}"
            )
    settings = Settings(
        **values | {name: value for name, value in options.items() if value is not None}
    )
    # Only complete settings are checked against each other: a fault above would cause misleading
    # ones here.
    faults = faults or check(settings)
    if faults:
        raise SettingsError("; ".join(faults))
    return settings


def _convert(kind: str, value: object) -> object:
    if isinstance(value, bool) or (kind == "int" and isinstance(value, float)):
        raise TypeError(value)
    if kind in {"int", "float"}:
        return int(str(value)) if kind == "int" else float(str(value))
    if not isinstance(value, str):
        raise TypeError(value)
    if kind.startswith("Path"):
        # Path("") would be the working directory.
        return Path(value).expanduser() if value else None
    return value


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def check(settings: Settings) -> list[str]:
    """Values that contradict each other or are out of range, one sentence each."""
    faults = [
        f"{name}: {getattr(settings, name)!r} is not one of {', '.join(choices)}"
        for name, choices in _CHOICES.items()
        if getattr(settings, name) not in choices
    ]
    if settings.source in {"exporter", "dcgm", "replay"} and not settings.target:
        faults.append(f"target: source {settings.source} needs an address or a file")
    for name, minimum in _MIN_SECONDS.items():
        if not minimum <= getattr(settings, name) <= _MAX_SECONDS:
            faults.append(f"{name}: must be between {minimum:g} and {_MAX_SECONDS}")
    faults += _check_addresses(settings)
    if not 0 <= settings.busy_threshold < 1:
        faults.append("busy_threshold: must be 0 or more and below 1")
    if settings.spool_bytes < 1024 * 1024:
        faults.append("spool_bytes: must be 1048576 or more")
    unknown = set(settings.owner_sources) - {*OWNER_SOURCES, "exporter", "dcgm", "simulated"}
    faults += [f"owners: {name!r} is not an owner source" for name in sorted(unknown)]
    faults += [
        f"kubernetes_reads: {name!r} is not one of {', '.join(KUBERNETES_READS)}"
        for name in sorted(set(settings.kubernetes_parts) - set(KUBERNETES_READS))
    ]
    faults += [
        f"extra_tiers: {name!r} is not gpm-opt or opt-in"
        for name in set(settings.extra) - {"gpm-opt", "opt-in"}
    ]
    return faults


def _check_addresses(settings: Settings) -> list[str]:
    faults = []
    if "@" in settings.collector_url:  # not repeated in the message: it may be a password
        faults.append(
            "collector_url: must not hold a user name or a password; a token goes into token_file"
        )
    elif not is_web_address(settings.collector_url):
        faults.append(
            f"collector_url: {settings.collector_url!r} is not http://HOST[:PORT] or"
            " https://HOST[:PORT]"
        )
    api = settings.kubernetes_api_url
    if api not in {"", "off"} and not (api.startswith("https://") and is_web_address(api)):
        faults.append(f"kubernetes_api_url: {api!r} is not https://HOST[:PORT] or off")
    faults += _check_pages(settings)
    port = settings.metrics_listen.rpartition(":")[2]
    if settings.metrics_listen and not (port.isdecimal() and int(port) <= MAX_PORT):
        faults.append(
            f"metrics_listen: {settings.metrics_listen!r} is not ADDRESS:PORT, such as"
            " 127.0.0.1:9440"
        )
    return faults


def _check_pages(settings: Settings) -> list[str]:
    """Addresses of pages that are read, whose modules are imported only where they are set: most
    agents must not pay their memory.
    """
    faults = []
    if settings.serving_endpoints:
        from gpuledger_agent.serving import endpoints

        try:
            endpoints(settings.serving_endpoints)
        except ValueError as error:
            faults.append(f"serving_endpoints: {error}")
    if settings.ray_clusters:
        from gpuledger_agent.owners.ray import ray_clusters

        try:
            ray_clusters(settings.ray_clusters)
        except ValueError as error:
            faults.append(f"ray_clusters: {error}")
    if settings.gateway_endpoints:
        from gpuledger_agent.gateways import gateways

        try:
            gateways(settings.gateway_endpoints)
        except ValueError as error:
            faults.append(f"gateway_endpoints: {error}")
        if settings.slow_interval_s > MAX_GATEWAY_INTERVAL_S:
            faults.append(
                f"slow_interval_s: at most {MAX_GATEWAY_INTERVAL_S} with gateway_endpoints: what was"
                " asked in a longer pause is not counted"
            )
    return faults


def is_web_address(text: str) -> bool:
    """Whether this is http://HOST[:PORT] or https://HOST[:PORT], perhaps with a path."""
    try:
        address = urlsplit(text)
        port = address.port
    except ValueError:  # brackets that do not match, a port that is not a number or out of range
        return False
    return address.scheme in {"http", "https"} and bool(address.hostname) and port != 0


def duration_ms(text: str, option: str = "--step", max_ms: int = HOUR_MS) -> int:
    """A duration such as 30s, 5m or 1h in milliseconds. Raises SettingsError naming the option."""
    match = re.fullmatch(r"(\d+)(s|m|h)", text)
    milliseconds = int(match[1]) * {"s": 1000, "m": 60_000, "h": HOUR_MS}[match[2]] if match else 0
    if not 1000 <= milliseconds <= max_ms:
        raise SettingsError(f"{option}: {text!r} is not a duration from 1s to {max_ms // HOUR_MS}h")
    return milliseconds
