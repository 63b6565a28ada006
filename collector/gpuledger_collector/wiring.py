"""Assemble the collector from its settings: the database, the HTTP side, and what jobs work with.

Below this module nothing reads the clock, the environment or a global.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuledger_collector.settings import Settings

if TYPE_CHECKING:
    import psycopg
    from fastapi import FastAPI
    from mcp.server import MCPServer
    from starlette.requests import Request

    from gpuledger_collector.api.auth.keys import Keys
    from gpuledger_collector.api.auth.principal import Principal
    from gpuledger_collector.api.intake import Intake
    from gpuledger_collector.api.limits import Quotas
    from gpuledger_collector.api.metrics import Metrics
    from gpuledger_collector.api.reader_limits import ReaderLimits
    from gpuledger_collector.api.remote_write import RemoteIntake
    from gpuledger_collector.api.scaling_gauge import ScalingGauge
    from gpuledger_collector.api.shared_quotas import SharedQuotas
    from gpuledger_collector.ingest.batches.commit import GroupCommit
    from gpuledger_collector.ingest.batches.store import EnsurePartitions
    from gpuledger_collector.ingest.batches.validate import Accepted
    from gpuledger_collector.ingest.remote_write.metering import ScrapeMeter
    from gpuledger_collector.ingest.remote_write.series import SeriesReader
    from gpuledger_collector.insight.recommendations.energy import Tariff
    from gpuledger_collector.mcp.http import Endpoint
    from gpuledger_collector.mcp.ledger import Reader
    from gpuledger_collector.notifications.links import AckLinks, PageLinks
    from gpuledger_collector.notifications.reclaim import ReclaimBackend
    from gpuledger_collector.notifications.sender import Sender
    from gpuledger_collector.notifications.transport import Transport
    from gpuledger_collector.notifications.webhooks import WebhookTransport
    from gpuledger_collector.readiness import Readiness
    from gpuledger_collector.services.finding_notifications import MailWriters
    from gpuledger_collector.services.upkeep import ArchiveRetention, RetentionDays
    from gpuledger_collector.storage.access.reader_watch import ReaderWatch
    from gpuledger_collector.storage.database import Database
    from gpuledger_collector.storage.server.embedded import EmbeddedServer
    from gpuledger_collector.storage.server.replicas import Presence
    from gpuledger_collector.worker_group import WorkerGroup
    from gpuledger_common.kubernetes_client import KubernetesClient
    from gpuledger_common.wire import Answer

log = logging.getLogger(__name__)
INGEST_SESSION = "-c synchronous_commit=on -c statement_timeout=60000 -c lock_timeout=10000"
"""An acknowledged batch is on disk, whatever the server's default; a blocked writer gives up, and
its agents retry.
"""
TOKENS_SESSION = "-c statement_timeout=10000 -c lock_timeout=2000"
"""Every request waits for the tokens, so that a blocked read fails soon."""


def read_clock() -> int:
    """Read the clock: the only place where the collector does."""
    return time.time_ns() // 1_000_000


@contextlib.contextmanager
def database(
    settings: Settings, *, migrated: bool = True, sharing: bool = False
) -> Iterator[Database]:
    """Open the database of these settings: the one given by DSN, else the embedded one, started and
    stopped as needed.

    The embedded one is migrated; one given by DSN must have been. `migrated=False` leaves the
    schema alone. `sharing`: transactions that follow each other share one connection. Raises
    StorageError with a sentence for people.
    """
    from gpuledger_collector.storage.database import Database

    given = settings.database_dsn()
    if given is not None:
        from gpuledger_collector.storage.database import is_standby
        from gpuledger_collector.storage.server import schema_version

        with contextlib.ExitStack() as stack:
            opened = Database(given)
            if sharing:
                opened = stack.enter_context(opened.sharing_connection())
            with opened.transaction() as connection:
                is_current = not migrated or schema_version.has_newest(connection)
                standby = is_standby(connection)
            if not is_current:
                _require_current(given)
            yield dataclasses.replace(opened, standby=standby)
        return
    import psycopg

    from gpuledger_collector.storage.errors import EnvironmentLacks, StorageError

    server = embedded_server(settings)
    assert server is not None
    opened = Database(server.acquire(), server)
    try:
        if migrated:
            _upgrade(opened.dsn)
        yield opened
    except (psycopg.OperationalError, StorageError) as error:
        if full := server.full_disk(error):
            raise EnvironmentLacks(full) from error
        raise
    finally:
        server.release()


def embedded_server(settings: Settings) -> EmbeddedServer | None:
    """The embedded server of these settings, not started; None for a database given by DSN."""
    if settings.database_dsn() is not None:
        return None
    from gpuledger_collector.storage.server.embedded import EmbeddedServer

    return EmbeddedServer(settings.data_dir, settings.embedded_user or None)


def _require_current(dsn: str) -> None:
    """Say what is between a database and the latest revision; Alembic is imported only for that.

    Raises StorageError.
    """
    from gpuledger_collector.storage.server import migrate

    migrate.require_current(dsn)


def _upgrade(dsn: str) -> None:
    """Call migrate.upgrade only when something is left to do, to spare importing Alembic.

    Raises StorageError.
    """
    from gpuledger_collector.storage.server import schema_version

    if not schema_version.is_newest(dsn, secured=True):
        from gpuledger_collector.storage.server import migrate

        migrate.upgrade(dsn)


@dataclass
class Collector:
    """The HTTP side of a collector: the application and the writers behind it."""

    app: FastAPI
    intake: Intake
    remote: RemoteIntake
    commit: GroupCommit[Accepted, Answer]
    metrics: Metrics
    leaving: threading.Event
    """Set once the process is asked to stop."""
    readiness: Readiness

    def last_error(self) -> tuple[int, str] | None:
        """When and why batches last failed to be written."""
        failures = [
            failure
            for failure in (self.commit.failure, self.remote.commit.failure)
            if failure is not None
        ]
        newest = max(failures, key=lambda failure: failure.at_ms, default=None)
        return None if newest is None else (newest.at_ms, newest.reason)


def collector(
    settings: Settings,
    opened: Database,
    clock: Callable[[], int] = read_clock,
    group: WorkerGroup | None = None,
) -> Collector:
    """Create the application and its writers over a database. Nothing is started.

    `group`: the workers that this process is one of.
    """
    from gpuledger_collector.api import acks, app
    from gpuledger_collector.api.context import ReadContext
    from gpuledger_collector.api.live import LiveHub
    from gpuledger_collector.api.metrics import Metrics
    from gpuledger_collector.api.reader_limits import ReaderLimits
    from gpuledger_collector.api.shared_quotas import all_of
    from gpuledger_collector.insight.ledger_health import MAX_PARTITIONS
    from gpuledger_collector.readiness import Readiness
    from gpuledger_collector.services.live import LiveWatch

    is_shared = group is not None and group.place.workers > 1
    metrics = Metrics(group)
    if settings.scaling_gauge_delay_seconds:
        metrics.registry.register(scaling_gauge(settings, opened, clock))
    keys = access_keys(settings, opened, clock)
    intake, remote = intakes(settings, opened, clock, keys, metrics, is_shared=is_shared)
    context = ReadContext(opened, clock, keys)
    leaving = threading.Event()
    readiness = Readiness(
        settings.data_dir if opened.server is not None else None,
        settings.min_free_bytes,
        (intake.commit.fault, remote.commit.fault),
        lambda: readiness_problems(opened),
        lambda: count_partitions(opened),
        MAX_PARTITIONS,
        intake.refusals.summary,
    )
    readers = ReaderLimits(keys, settings.page_seconds)
    hub = LiveHub(LiveWatch(opened), clock, leaving.is_set, metrics)
    lifespans = [] if opened.standby else [shared_quotas(intake, remote, opened).lifespan]
    assistants = mcp_endpoint(settings, opened, clock, keys, readers) if settings.mcp else None
    application = app.create(
        intake,
        remote,
        metrics,
        readiness.problem,
        context,
        readers,
        hub,
        # While one worker is replaced the others serve: a balancer before them need not know.
        lambda: leaving.is_set() and (group is None or group.is_stopping),
        readiness.note,
        partial(all_of, [*lifespans, *([] if assistants is None else [assistants.lifespan])]),
        group.summary if group is not None and is_shared else None,
    )
    application.state.boards_url = settings.grafana_url
    if assistants is not None:
        # No stream is opened by GET: without sessions there is nothing to send in it.
        application.add_route(
            assistants.path,
            assistants,  # type: ignore[arg-type]
            methods=["POST"],
            include_in_schema=False,
        )
    if (links := ack_links(settings)) is not None:
        application.include_router(acks.router(links, opened, clock))
    return Collector(application, intake, remote, intake.commit, metrics, leaving, readiness)


def access_keys(settings: Settings, opened: Database, clock: Callable[[], int]) -> Keys:
    """Create the check of who may send and read."""
    from gpuledger_collector.api.auth.keys import FileTokens, Keys
    from gpuledger_collector.api.auth.proxy import Proxy
    from gpuledger_collector.services.tokens import TokenStore

    return Keys(
        TokenStore(opened.as_application("gpuledger-tokens", TOKENS_SESSION)),
        clock,
        FileTokens.from_secrets(settings.agent_tokens(), settings.reader_tokens()),
        # Without tokens only this machine may talk to the collector; a proxy that names readers
        # needs them as well.
        settings.require_tokens or not settings.on_loopback or bool(settings.identity_header),
        (
            Proxy(settings.identity_header, settings.proxy_networks())
            if settings.identity_header
            else None
        ),
    )


MCP_REMEDY = (
    "pip install --require-hashes --requirement requirements/mcp.txt in a checkout, "
    "or pipx inject gpuledger 'mcp>=2.3,<2.4'"
)
MCP_MISSING = (
    f"answers for assistants need the package mcp, which is not installed here: {MCP_REMEDY}"
)


def has_mcp() -> bool:
    """Whether the SDK of the Model Context Protocol is installed, without loading it."""
    from importlib.util import find_spec

    return find_spec("mcp") is not None


def require_mcp() -> None:
    """Raise EnvironmentLacks where the SDK of the Model Context Protocol is not installed."""
    from gpuledger_collector.storage.errors import EnvironmentLacks

    if not has_mcp():
        raise EnvironmentLacks(MCP_MISSING)


def mcp_endpoint(
    settings: Settings,
    opened: Database,
    clock: Callable[[], int],
    keys: Keys,
    readers: ReaderLimits,
) -> Endpoint | None:
    """Create the endpoint of assistants, behind the same tokens as every reading route.

    None without their SDK, which the log says: intake must not depend on an extra.
    """
    if not has_mcp():
        log.error("assistants are not answered, although mcp is true: %s", MCP_MISSING)
        return None
    from gpuledger_collector.api.context import as_http_error
    from gpuledger_collector.api.reader_limits import ReadRefused, payer_of
    from gpuledger_collector.mcp import http
    from gpuledger_collector.mcp.server import Source

    def authenticate(request: Request) -> Principal:
        try:
            return keys.person(request)
        except Exception as error:
            raise as_http_error(error) or error from error

    @contextlib.asynccontextmanager
    async def turn(reader: Reader, request: Request) -> AsyncIterator[None]:
        try:
            async with readers.turn(payer_of(reader, request)):
                yield
        except ReadRefused as error:
            raise as_http_error(error) or error from error

    source = Source(opened, clock, http.reader_of, settings.public_url)
    return http.Endpoint(
        source, authenticate, http.hosts_of(settings.public_url, settings.mcp_hosts), turn
    )


def mcp_server(
    settings: Settings, opened: Database, clock: Callable[[], int] = read_clock
) -> MCPServer[Any]:
    """Create the server of assistants for standard input and output.

    Raises EnvironmentLacks, SettingsError.

    It sees what the reader of `mcp_token_file` sees; without that file all, as every command on
    this database does.
    """
    require_mcp()
    from starlette.exceptions import HTTPException

    from gpuledger_collector.api.auth.principal import Principal
    from gpuledger_collector.api.context import as_http_error
    from gpuledger_collector.mcp import server
    from gpuledger_collector.settings import read_secret
    from gpuledger_common.settings import SettingsError

    keys, path = access_keys(settings, opened, clock), settings.mcp_token_file
    # A token that is named must be a valid one, also where nobody else needs any.
    keys.required = True
    header = "" if path is None else f"Bearer {read_secret(path, 'mcp_token_file')}"

    def reader(_request: Request | None) -> Principal:
        if not header:
            return Principal("finance", "whoever runs gpuledger mcp")
        try:
            keys.refresh(header)
            return keys.reader(header)
        except Exception as error:
            raise as_http_error(error) or error from error

    try:
        reader(None)
    except HTTPException as error:
        # Said at start, where whoever set it up looks, and not only in the answers to questions.
        raise SettingsError(f"mcp_token_file: {error.detail}") from error
    source = server.Source(opened, clock, reader, settings.public_url)
    return server.create(source)


def warn_of_new_nodes(keys: Keys, names: Sequence[str]) -> None:
    """Log nodes of which the ledger had never heard, where no agent needs a token."""
    from gpuledger_collector.services import new_nodes

    if keys.lets_anybody_report:
        log.warning("%s", new_nodes.sentence(names))


def intakes(
    settings: Settings,
    opened: Database,
    clock: Callable[[], int],
    keys: Keys,
    metrics: Metrics,
    is_shared: bool = False,
) -> tuple[Intake, RemoteIntake]:
    """Create the writers of agents' batches and of remote write; both write through the same store.

    `is_shared`: other processes write what the same nodes send.
    """
    from gpuledger_collector.accounting.placement import Placement
    from gpuledger_collector.api import remote_write
    from gpuledger_collector.api.intake import Intake
    from gpuledger_collector.api.limits import Quota
    from gpuledger_collector.ingest.batches.commit import GroupCommit, Limits
    from gpuledger_collector.ingest.batches.store import Store
    from gpuledger_collector.ingest.remote_write.series import SeriesCache
    from gpuledger_collector.ingest.remote_write.store import RemoteStore
    from gpuledger_collector.storage.ledger import placements

    writing = opened.as_application("gpuledger-ingest", INGEST_SESSION)

    def on_flush(size: int, _samples: int, seconds: float) -> None:
        metrics.flush_batches.observe(size)
        metrics.flush_seconds.observe(seconds)

    def settle_placements(
        connection: psycopg.Connection[tuple[Any, ...]], accelerators: Iterable[int], since_ms: int
    ) -> Mapping[int, Placement]:
        return placements.settle(
            connection, accelerators, since_ms, lambda _: metrics.contested.inc()
        )

    store = Store(partition_maker(clock), settle_placements, is_shared=is_shared)
    store.ids.on_new_nodes = partial(warn_of_new_nodes, keys)
    limits = Limits(
        writers=settings.writers,
        flush_batches=settings.flush_batches,
        queue_batches=settings.queue_batches,
        queue_bytes=settings.queue_bytes,
    )
    commit = GroupCommit(store, writing.connect, clock, limits, on_flush)
    metrics.watch_queue(lambda: commit.waiting)
    intake = Intake(
        commit,
        metrics,
        clock,
        keys,
        settings.queue_bytes,
        max_age_ms=max_age_ms(settings),
        gateway_nodes=settings.gateway_node_names,
        quotas=quotas(settings),
        count_new=store.count_new,
        remember_owners=store.remember_owners,
    )
    scrapes = RemoteStore(store, settings.remote_write_window_seconds * 1000)
    quota = Quota(settings.remote_write_samples_per_second, "samples")
    writers = GroupCommit(scrapes, writing.connect, clock, limits, on_flush)
    remote = remote_write.RemoteIntake(intake, writers, quota, SeriesCache(series_reader(settings)))
    return intake, remote


def series_reader(settings: Settings) -> SeriesReader:
    """Reads series of exporters by the packaged profiles and those of the settings.

    Raises ProfileError.
    """
    from gpuledger_collector.ingest.remote_write.series import SeriesReader
    from gpuledger_common.gateways.library import all_gateways
    from gpuledger_common.profiles.library import all_profiles

    return SeriesReader(all_profiles(settings.profile_files), all_gateways(settings.profile_files))


def partition_maker(clock: Callable[[], int]) -> EnsurePartitions:
    """Create the function that creates partitions for days: a whole month for old days."""
    from gpuledger_collector.storage.telemetry import partitions

    def ensure(
        connection: psycopg.Connection[tuple[Any, ...]], table: str, days_ms: Iterable[int]
    ) -> object:
        before_ms = partitions.coarse_before(clock())
        return partitions.ensure(connection, table, days_ms, before_ms)

    return ensure


def quotas(settings: Settings) -> Quotas:
    """Limits on what a node may send."""
    from gpuledger_collector.api.limits import HOUR_SECONDS, Quota, Quotas

    return Quotas(
        samples=Quota(settings.node_samples_per_second, "samples"),
        bytes=Quota(settings.node_bytes_per_second, "bytes"),
        inflated_bytes=Quota(settings.node_inflated_bytes_per_second, "decompressed bytes"),
        names=Quota(settings.node_names_per_second, "accelerators and workloads"),
        new_names=Quota(
            settings.node_new_names_per_hour / HOUR_SECONDS, "new names", burst_s=HOUR_SECONDS
        ),
        new_days=Quota(
            settings.node_new_days_per_hour / HOUR_SECONDS, "new days", burst_s=HOUR_SECONDS
        ),
        new_owners=Quota(
            settings.node_new_owners_per_hour / HOUR_SECONDS, "new owners", burst_s=HOUR_SECONDS
        ),
        queue_readings=Quota(
            settings.node_queue_readings_per_hour / HOUR_SECONDS,
            "queue readings",
            burst_s=HOUR_SECONDS,
        ),
        queue_bytes=Quota(
            settings.node_queue_bytes_per_hour / HOUR_SECONDS,
            "bytes of queue readings",
            burst_s=HOUR_SECONDS,
        ),
    )


def shared_quotas(intake: Intake, remote: RemoteIntake, opened: Database) -> SharedQuotas:
    """Create what makes quotas hold for all workers and collectors. Nothing is started."""
    from gpuledger_collector.api.shared_quotas import SharedQuotas

    of_nodes = {
        field.name: getattr(intake.quotas, field.name)
        for field in dataclasses.fields(intake.quotas)
    }
    return SharedQuotas(
        {**of_nodes, "remote_write": remote.quota, "refusals": intake.refusals.use}, opened
    )


def max_age_ms(settings: Settings) -> int | None:
    """Maximum age of evidence of agents and of remote write, in milliseconds; None: unlimited."""
    return settings.max_evidence_age_days * 86_400_000 or None


def latest_evidence_days(settings: Settings) -> int:
    """Days after which no agent sends evidence any more: of batches that count once, where any age
    is accepted.
    """
    return settings.max_evidence_age_days or settings.keep_batches_days


def scaling_gauge(settings: Settings, opened: Database, clock: Callable[[], int]) -> ScalingGauge:
    """The gauge of every pool's desired GPUs."""
    from gpuledger_collector.api.scaling_gauge import ScalingGauge
    from gpuledger_collector.services import scaling_advice

    def read_gauge() -> Mapping[str, float]:
        with opened.connect() as connection:
            return scaling_advice.desired_gpus(
                connection, clock(), settings.scaling_gauge_delay_seconds
            )

    def outcomes() -> Mapping[tuple[str, str], float]:
        with opened.connect() as connection:
            return scaling_advice.outcome_gpu_seconds(connection, clock())

    return ScalingGauge(read_gauge, outcomes=outcomes)


def presence(
    opened: Database, last_error: Callable[[], tuple[int, str] | None] = lambda: None
) -> Presence:
    """Create the heartbeat of this process, which carries when and why a write last failed.

    Nothing is started.
    """
    from gpuledger_collector.storage.server import migrate
    from gpuledger_collector.storage.server.replicas import Presence

    return Presence(opened.as_application("gpuledger-heartbeat"), migrate.head(), last_error)


def reader_watch(opened: Database) -> ReaderWatch:
    """Create the watch that ends sessions of readers beyond their limits. Nothing is started."""
    from gpuledger_collector.storage.access.reader_watch import ReaderWatch

    return ReaderWatch(opened)


def readiness_problems(opened: Database) -> str | None:
    """Return what keeps the database from taking batches, in a sentence; None when nothing does."""
    import psycopg

    from gpuledger_collector.storage import distribution
    from gpuledger_collector.storage.errors import StorageError
    from gpuledger_collector.storage.server import schema_version

    try:
        with opened.connect() as connection:
            if not schema_version.has_newest(connection):
                _require_current(opened.dsn)
            return distribution.worker_problem(connection)
    except (StorageError, psycopg.Error) as error:
        return str(error).strip().partition("\n")[0]


def count_partitions(opened: Database) -> int:
    """Count the partitions of evidence. Raises StorageError, psycopg.Error."""
    from gpuledger_collector.storage.telemetry import partitions

    with opened.connect() as connection:
        return partitions.count(connection)


def archive_retention(settings: Settings) -> ArchiveRetention:
    """When samples are packed, and how long packed samples and evidence are kept."""
    from gpuledger_collector.services.upkeep import ArchiveRetention

    return ArchiveRetention(
        settings.pack_after_days,
        settings.keep_archive_days,
        settings.keep_usage_interval_days,
        settings.keep_batches_days,
    )


def merged_tables(settings: Settings) -> list[str]:
    """Tables whose old days are merged into months; samples only when they are packed later than
    that.
    """
    from gpuledger_collector.storage.telemetry import partitions

    samples = ["gpu_sample"] if settings.pack_after_days > partitions.COARSE_AFTER_DAYS else []
    return ["usage_interval", *samples]


def retention_days(settings: Settings) -> RetentionDays:
    """How long minutes, slow metrics and findings are kept."""
    from gpuledger_collector.services.upkeep import RetentionDays

    return RetentionDays(
        settings.keep_minute_days,
        settings.keep_node_utilization_days,
        settings.keep_state_days,
        settings.keep_finding_days,
        settings.keep_batches_days,
    )


def tariff(settings: Settings) -> Tariff | None:
    """The price of energy; None when it is not configured. Raises SettingsError."""
    from decimal import Decimal, InvalidOperation

    if not settings.energy_rate:
        return None
    from gpuledger_collector.insight.recommendations.energy import Tariff
    from gpuledger_common.settings import SettingsError

    amount, _, currency = settings.energy_rate.partition(" ")
    try:
        rate, pue = Decimal(amount), Decimal(settings.energy_pue)
    except InvalidOperation:
        rate = pue = Decimal(-1)
    if not (rate.is_finite() and pue.is_finite() and rate >= 0 and pue >= 1 and len(currency) == 3):
        raise SettingsError(
            "energy_rate is an amount and a currency such as `0.21 EUR`, energy_pue a number from"
            " 1 on"
        )
    return Tariff(rate, currency, pue)


def metering(settings: Settings) -> ScrapeMeter:
    """Create the meter of scrapes from remote write."""
    from gpuledger_collector.ingest.batches.store import Store
    from gpuledger_collector.ingest.remote_write.metering import MeterLimits, ScrapeMeter
    from gpuledger_collector.storage.ledger import placements

    limits = MeterLimits(
        settings.remote_write_gap_seconds * 1000, settings.remote_write_window_seconds * 1000
    )
    store = Store(partition_maker(read_clock), placements.settle)
    return ScrapeMeter(store, limits)


def sender(settings: Settings, opened: Database) -> Sender:
    """Create the sender of waiting messages, with the configured transports; messages of other
    channels wait.
    """
    from gpuledger_collector.notifications.folder import MailFolder
    from gpuledger_collector.notifications.sender import Sender
    from gpuledger_collector.notifications.smtp import SmtpTransport
    from gpuledger_collector.settings import read_secret
    from gpuledger_collector.storage.notifications.outbox import Outbox

    transports: dict[str, Transport] = {}
    if settings.mail_dir is not None:
        transports["mail"] = MailFolder(settings.mail_dir, settings.mail_from)
    elif settings.mail_server:
        host, _, port = settings.mail_server.rpartition(":")
        secret = settings.mail_password_file
        transports["mail"] = SmtpTransport(
            host.strip("[]"),
            int(port),
            settings.mail_from,
            settings.mail_security,
            settings.mail_user,
            lambda: "" if secret is None else read_secret(secret, "mail_password_file"),
            None if settings.mail_ca_file is None else str(settings.mail_ca_file),
        )
    if settings.hooks_file is not None:
        transports |= {
            channel: hook(settings, channel) for channel in ("slack", "teams", "webhook")
        }
    return Sender(
        Outbox(opened),
        transports,
        read_clock,
        settings.mail_resend_unconfirmed,
    )


def hook(settings: Settings, channel: str) -> WebhookTransport:
    """The configured hooks of a channel: slack, teams or webhook. Raises SettingsError."""
    from gpuledger_collector.config.hooks import read_hooks
    from gpuledger_collector.notifications.webhooks import WebhookTransport

    hooks = read_hooks(settings.hooks_file)
    return WebhookTransport(
        channel,
        {name: target.address for name, target in hooks.items()},
        secrets={
            name: target.secret for name, target in hooks.items() if target.secret is not None
        },
        private=frozenset(name for name, target in hooks.items() if target.private),
    )


def notification_writers(settings: Settings) -> MailWriters:
    """Create the writers of notifications, with links where they are configured."""
    from gpuledger_collector.notifications import finding_mail, spending_week_mail
    from gpuledger_collector.services.finding_notifications import MailWriters

    links, pages = ack_links(settings), page_links(settings)
    return MailWriters(
        partial(finding_mail.idle, links=links, pages=pages),
        partial(finding_mail.anomaly, links=links, pages=pages),
        partial(finding_mail.summary, pages=pages),
        partial(spending_week_mail.spending_week, links=links, pages=pages),
    )


def reclaim_backends(settings: Settings) -> Mapping[str, ReclaimBackend]:
    """Create the backends that reclaim idle GPUs, by their names in [[action]].

    Raises SettingsError.
    """
    from gpuledger_collector.notifications.reclaim import (
        KubernetesBackend,
        SlurmBackend,
        WebhookBackend,
    )
    from gpuledger_collector.settings import read_secret

    backends: dict[str, ReclaimBackend] = {"scancel": SlurmBackend()}
    token = settings.kubernetes_token_file
    if settings.kubernetes_api and token is not None:
        ca = settings.kubernetes_ca_file
        backends["evict"] = KubernetesBackend(
            settings.kubernetes_api,
            lambda: read_secret(token, "kubernetes_token_file"),
            None if ca is None else str(ca),
        )
    transport = hook(settings, "webhook")
    return backends | {f"webhook:{name}": WebhookBackend(transport) for name in transport.addresses}


def queue_client(settings: Settings) -> KubernetesClient:
    """Create the client that is asked for the queues of schedulers: of `kubernetes_api`, else of
    the cluster in which this collector runs. Raises SettingsError where it runs in none.
    """
    from gpuledger_collector.ingest.scheduler_queues.reader import open_client
    from gpuledger_common.kubernetes_client import ACCOUNT, in_cluster_url
    from gpuledger_common.settings import SettingsError

    if settings.kubernetes_api and settings.kubernetes_token_file is not None:
        return open_client(
            settings.kubernetes_api, settings.kubernetes_token_file, settings.kubernetes_ca_file
        )
    url = in_cluster_url()
    if url is None:
        raise SettingsError(
            "kubernetes_queues: this is no pod of a cluster; set kubernetes_api and"
            " kubernetes_token_file"
        )
    return open_client(url, ACCOUNT / "token", settings.kubernetes_ca_file or ACCOUNT / "ca.crt")


def page_links(settings: Settings) -> PageLinks | None:
    """The addresses of pages in mails; None when it is not configured where people reach this
    server.
    """
    if not settings.public_url:
        return None
    from gpuledger_collector.notifications.links import PageLinks

    return PageLinks(settings.public_url)


def ack_links(settings: Settings) -> AckLinks | None:
    """The acknowledgment links of mails; None when they are not configured."""
    if settings.link_secret_file is None:
        return None
    from gpuledger_collector.notifications.links import AckLinks
    from gpuledger_collector.settings import read_link_secret

    return AckLinks(settings.public_url, read_link_secret(settings.link_secret_file))
