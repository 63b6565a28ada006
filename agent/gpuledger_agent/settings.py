"""The agent's settings: a TOML file and GPULEDGER_AGENT_* in the environment, which wins; none is needed."""

from __future__ import annotations

import difflib
import os
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpuledger_agent.owners import places
from gpuledger_common.readings import AgentError

PREFIX = "GPULEDGER_AGENT_"
LAST_PORT = 65_535
SERVICE_STATE = Path("/var/lib/gpuledger-agent")
"""StateDirectory= of our systemd units."""
SOURCES = ("nvml", "dcgm", "simulated", "replay")


class SettingsError(AgentError):
    """A setting cannot be used; the message names where it stands and what is wrong."""

    permanent = True


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its default. Durations are seconds."""

    node: str = field(default="", metadata={"help": "name of this node; empty: its host name"})
    source: str = field(default="nvml", metadata={"help": "nvml, dcgm, simulated or replay"})
    target: str = field(default="", metadata={"help": "address or file for dcgm and replay"})
    pool: str = field(default="", metadata={"help": "pool of this node's accelerators; empty: default"})
    collector_url: str = field(default="http://127.0.0.1:8440", metadata={"help": "address of the collector"})
    token_file: Path | None = field(default=None, metadata={"help": "file with this node's token"})
    ca_file: Path | None = field(default=None, metadata={"help": "PEM certificates to trust for the collector"})
    spool_dir: Path | None = field(default=None, metadata={"help": "folder of the spool; empty: the state folder"})
    spool_bytes: int = field(default=512 * 1024 * 1024, metadata={"help": "largest size of the spool"})
    sample_interval_s: float = field(default=10.0, metadata={"help": "seconds between samples"})
    slow_interval_s: float = field(default=60.0, metadata={"help": "seconds between samples of the slow tier"})
    extra_tiers: str = field(default="", metadata={"help": "metrics that cost more: gpm-opt, opt-in, or both"})
    push_interval_s: float = field(default=60.0, metadata={"help": "seconds between batches"})
    busy_threshold: float = field(default=0.01, metadata={"help": "activity above this ratio is busy"})
    metrics_listen: str = field(default="127.0.0.1:9440", metadata={"help": "address of /metrics; empty: none"})
    dcgm_names: str = field(default="old", metadata={"help": "dcgm-exporter's names on /metrics: old, new or off"})
    owners: str = field(
        default="static,slurm,kubernetes,containers,processes", metadata={"help": "owner sources, first match wins"}
    )
    owner_rules_file: Path | None = field(default=None, metadata={"help": "TOML file with static owner rules"})
    slurm_jobs_dir: Path | None = field(
        default=places.SLURM_JOBS, metadata={"help": "folder of our Slurm prolog's files; empty: none"}
    )
    slurm_mapping_dir: Path | None = field(
        default=None, metadata={"help": "folder of dcgm-exporter's or jobstats' files, a GPU each; empty: none"}
    )
    kubelet_socket: Path | None = field(
        default=places.KUBELET_SOCKET, metadata={"help": "the kubelet's pod-resources socket; empty: none"}
    )
    kubernetes_api_url: str = field(
        default="", metadata={"help": "API server, asked for pod labels; empty: that of the cluster; off: none"}
    )
    kubernetes_account_dir: Path | None = field(
        default=places.KUBERNETES_ACCOUNT, metadata={"help": "folder with the API server's token and ca.crt"}
    )
    pod_logs_dir: Path | None = field(
        default=places.POD_LOGS, metadata={"help": "folder of which the names tell pod UIDs without the API server"}
    )
    container_socket: Path | None = field(
        default=None, metadata={"help": "socket of docker or podman; empty: the first of their usual ones"}
    )
    owner_stale_s: float = field(
        default=places.STALE_S,
        metadata={"help": "seconds that pods and containers hold on when their source is silent"},
    )
    serving_endpoints: str = field(
        default="", metadata={"help": "[WORKLOAD=]URL of inference servers' /metrics, comma-separated; empty: none"}
    )
    progress_dir: Path | None = field(
        default=None, metadata={"help": "folder of files in which runs tell their steps and tokens; empty: none"}
    )
    seed: int = field(default=7, metadata={"help": "seed of the simulated fleet"})
    given_back_ms: int = field(
        default=0,
        metadata={"help": "instant (unix ms) at which the simulated fleet gives back what it reserved; 0: never"},
    )
    log_level: str = field(default="info", metadata={"help": "debug, info, warning or error"})
    log_format: str = field(default="plain", metadata={"help": "plain or json"})

    @property
    def node_name(self) -> str:
        """The name that this node reports under."""
        return self.node or socket.gethostname()

    @property
    def owner_sources(self) -> tuple[str, ...]:
        """Names of the owner sources, in order."""
        return tuple(name.strip() for name in self.owners.split(",") if name.strip())

    @property
    def owner_places(self) -> places.Places:
        """Where the owner sources look."""
        return places.Places(
            self.kubelet_socket,
            self.kubernetes_api_url,
            self.kubernetes_account_dir,
            self.pod_logs_dir,
            self.container_socket,
            self.owner_stale_s,
            self.slurm_jobs_dir,
            self.slurm_mapping_dir,
        )

    @property
    def extra(self) -> tuple[str, ...]:
        """Names of the extra tiers."""
        return tuple(name.strip() for name in self.extra_tiers.split(",") if name.strip())

    @property
    def spool_folder(self) -> Path:
        """Where the spool lies: the setting, systemd's state folder, or the user's state folder."""
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
            raise SettingsError("spool_dir: this user has no home folder, so it must be set") from None

    @property
    def agent_folder(self) -> Path:
        """Where the agent of this machine keeps its state, for a person's command: that of our unit, if it is there.

        Raises SettingsError when this user may not write there.
        """
        if self.spool_dir is not None or "STATE_DIRECTORY" in os.environ or not os.path.lexists(SERVICE_STATE):
            return self.spool_folder
        if not os.access(SERVICE_STATE, os.W_OK | os.X_OK):
            raise SettingsError(f"{SERVICE_STATE} belongs to the agent's service: run this as root")
        return SERVICE_STATE

    @property
    def token_path(self) -> Path | None:
        """The token's file: the setting, or systemd's credential `token`; an empty one, our units' default, is none."""
        if self.token_file is not None:
            return self.token_file
        credentials = os.environ.get("CREDENTIALS_DIRECTORY")
        candidate = Path(credentials) / "token" if credentials else None
        return candidate if candidate is not None and candidate.is_file() and candidate.read_text().strip() else None


FIELDS = {entry.name: entry for entry in fields(Settings)}


def load(config: Path | None, environment: Mapping[str, str], **given: Any) -> Settings:
    """Settings from the file, the environment and what the command line gave (None: not given), in rising order.

    Raises SettingsError with every fault found.
    """
    faults: list[str] = []
    values: dict[str, Any] = {}
    if config is not None:
        for key, value in _read(config).items():
            _take(values, key, value, f"{config}: {key}", faults)
    for name, text in sorted(environment.items()):
        if name.startswith(PREFIX):
            _take(values, name.removeprefix(PREFIX).lower(), text, name, faults)
    values |= {key: value for key, value in given.items() if value is not None}
    settings = Settings(**values)
    if not faults:
        faults += check(settings)
    if faults:
        raise SettingsError("; ".join(faults))
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}") from error


def _take(values: dict[str, Any], key: str, value: object, where: str, faults: list[str]) -> None:
    if key not in FIELDS:
        near = difflib.get_close_matches(key, FIELDS, n=1, cutoff=0.0)[0]
        faults.append(f"{where} is not a setting; the nearest one is {near}")
        return
    try:
        values[key] = _convert(str(FIELDS[key].type), value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a ~user that is not there
        faults.append(f"{where}: {value!r} is not a {str(FIELDS[key].type).partition(' ')[0].lower()}")


def _convert(kind: str, value: object) -> object:
    if isinstance(value, bool):
        raise TypeError(value)
    if kind == "int":
        if isinstance(value, float):
            raise TypeError(value)
        return int(str(value))
    if kind == "float":
        return float(str(value))
    if not isinstance(value, str):
        raise TypeError(value)
    if kind.startswith("Path"):
        return Path(value).expanduser() if value else None  # an empty path is no path; as one it would be the cwd
    return value


def check(settings: Settings) -> list[str]:
    """What contradicts itself or lies out of range, a sentence each."""
    faults = []
    if settings.source not in SOURCES:
        faults.append(f"source: {settings.source!r} is not one of {', '.join(SOURCES)}")
    if settings.source in {"dcgm", "replay"} and not settings.target:
        faults.append(f"target: source {settings.source} needs an address or a file")
    least_s = {"sample_interval_s": 0.1, "push_interval_s": 1.0, "slow_interval_s": 1.0, "owner_stale_s": 1.0}
    for name, least in least_s.items():
        if not least <= getattr(settings, name) <= 3600:
            faults.append(f"{name}: must lie between {least:g} and 3600")
    faults += _check_addresses(settings)
    if not 0 <= settings.busy_threshold < 1:
        faults.append("busy_threshold: must lie between 0 and 1")
    if settings.spool_bytes < 1024 * 1024:
        faults.append("spool_bytes: must be 1048576 or more")
    known = {"static", "slurm", "kubernetes", "containers", "processes", "dcgm", "simulated"}
    unknown = set(settings.owner_sources) - known
    faults += [f"owners: {name!r} is not an owner source" for name in sorted(unknown)]
    faults += [
        f"extra_tiers: {name!r} is not gpm-opt or opt-in" for name in set(settings.extra) - {"gpm-opt", "opt-in"}
    ]
    if settings.dcgm_names not in {"old", "new", "off"}:
        faults.append(f"dcgm_names: {settings.dcgm_names!r} is not old, new or off")
    if settings.log_level not in {"debug", "info", "warning", "error"}:
        faults.append(f"log_level: {settings.log_level!r} is not debug, info, warning or error")
    if settings.log_format not in {"plain", "json"}:
        faults.append(f"log_format: {settings.log_format!r} is not plain or json")
    return faults


def _check_addresses(settings: Settings) -> list[str]:
    faults = []
    if "@" in settings.collector_url:  # never said again: it may be a password
        faults.append("collector_url: must not hold a user name or a password; a token goes into token_file")
    elif not _is_web_address(settings.collector_url):
        faults.append(f"collector_url: {settings.collector_url!r} is not http://HOST[:PORT] or https://HOST[:PORT]")
    api = settings.kubernetes_api_url
    if api not in {"", "off"} and not (api.startswith("https://") and _is_web_address(api)):
        faults.append(f"kubernetes_api_url: {api!r} is not https://HOST[:PORT] or off")
    if settings.serving_endpoints:
        from gpuledger_agent.serving import endpoints  # not in the memory of agents that do not need it

        try:
            endpoints(settings.serving_endpoints)
        except ValueError as error:
            faults.append(f"serving_endpoints: {error}")
    port = settings.metrics_listen.rpartition(":")[2]
    if settings.metrics_listen and not (port.isdecimal() and int(port) <= LAST_PORT):
        faults.append(f"metrics_listen: {settings.metrics_listen!r} is not ADDRESS:PORT, such as 127.0.0.1:9440")
    return faults


def _is_web_address(text: str) -> bool:
    try:
        address = urlsplit(text)
        port = address.port
    except ValueError:  # brackets that do not match, a port that is no number or out of range
        return False
    return address.scheme in {"http", "https"} and bool(address.hostname) and port != 0
