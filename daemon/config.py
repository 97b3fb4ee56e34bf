"""The whole configuration: one TOML file for the head, for an agent, or for both.

Every section is a model of its own, kept beside the code that it steers; here they are only
put together. ``faults_outside`` looks at what a model cannot know: files, users, sockets.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, field_validator

from collectors.slurm.source import Options as SlurmOptions
from daemon.agent.config import DEFAULT_FILE as DEFAULT_FILE
from daemon.agent.config import AgentSection, agent_faults, unreadable
from daemon.alerts.outbox import WayError
from daemon.alerts.tell import AlertOptions, make_ways
from daemon.gate.gateway import GatewayOptions
from daemon.gate.tokens import TokensError, parse_tokens
from daemon.jobs.options import JobOptions
from daemon.learning.options import LearningOptions, RiskOptions
from daemon.listen import Address
from daemon.page.guard import is_loopback
from daemon.policy.decisions import Mode
from daemon.policy.groups import configured
from daemon.policy.limits import Limits
from daemon.settings import ConfigError, Fault, Section, load
from daemon.slurm.lease import HOLDS_SHARE, LeaseOptions
from daemon.sources import HeadSources
from daemon.store.influx_options import InfluxOptions
from daemon.store.options import StoreOptions
from models.silence import SilenceOptions
from models.skew import VERSION_KINDS


class SlurmSection(SlurmOptions):
    """Section ``[slurm]``: how the head reads and writes Slurm."""

    # The cluster's name in alerts and on the page.
    cluster: str = "cluster"


class PageSection(Section):
    """Section ``[page]``: the operator's page. Off loopback it needs a login."""

    enabled: bool = True
    # host:port. Anything but loopback needs logins_file or password_file.
    listen: str = "127.0.0.1:8650"
    # Further host names under which the page may be called (behind a proxy).
    names: frozenset[str] = frozenset()
    # Holds a password that people share (user name: any). Who enters with it only looks.
    password_file: Path | None = None
    # Logins of people's own, a line each: "name secret", as tocsin token NAME --tokens-file makes
    # it. Who enters so may also approve and deny, and is recorded as page:name.
    logins_file: Path | None = None
    # TLS for the page: certificate (with its chain) and key, in PEM.
    certificate_file: Path | None = None
    key_file: Path | None = None

    @field_validator("listen")
    @classmethod
    def _address(cls, value: str) -> str:
        Address.parse(value)
        return value


class HeadSection(Section):
    """Section ``[head]``: where the head listens, keeps its state, and how often it judges."""

    # host:port of the gateway, where agents write.
    listen: str = "0.0.0.0:8086"
    # Store, ledger, checkpoint and alert state; wants a local disk.
    state_dir: Path = Path("/var/lib/tocsin")
    # Where operators' commands reach the head.
    socket: Path = Path("/run/tocsin/tocsin.sock")
    # Members of this Unix group may operate, beside root and the head's own user.
    operators_group: str = "tocsin-operators"
    # Who may write: one line a token, made by `tocsin token NODE`. Read again when it changes.
    tokens_file: Path = Path("/etc/tocsin/tokens")
    # TLS for the gateway: certificate (with its chain) and key, in PEM.
    certificate_file: Path | None = None
    key_file: Path | None = None
    # With it a client certificate counts as the token of the node that its common name names.
    client_ca_file: Path | None = None
    # How often everything is judged; an urgent event is judged at once.
    judge_seconds: float = Field(default=5.0, gt=0, le=300)
    # How often what the watch knows is written down; less often where that costs 2 % of a core.
    checkpoint_seconds: float = Field(default=60.0, ge=1, le=3600)
    sources: HeadSources = HeadSources()
    # Two heads: both mount state_dir and the lease; one acts, the other stands by.
    lease: LeaseOptions = LeaseOptions()

    @field_validator("listen")
    @classmethod
    def _address(cls, value: str) -> str:
        Address.parse(value)
        return value


class Config(Section):
    """Everything. ``mode`` is how far the head may go: shadow (default), approve or act."""

    # How far the head may go: watch only, ask a person, or act.
    mode: Mode = Mode.SHADOW
    head: HeadSection = HeadSection()
    slurm: SlurmSection = SlurmSection()
    policy: Limits = Limits()
    silence: SilenceOptions = SilenceOptions()
    gateway: GatewayOptions = GatewayOptions()
    store: StoreOptions = StoreOptions()
    influxdb: InfluxOptions = InfluxOptions()
    alerts: AlertOptions = AlertOptions()
    jobs: JobOptions = JobOptions()
    page: PageSection = PageSection()
    risk: RiskOptions = RiskOptions()
    learning: LearningOptions = LearningOptions()
    # Racks, power feeds and the like: [groups.rack] r07 = "gpu[097-112]".
    groups: dict[str, dict[str, str]] = Field(default_factory=dict)
    # Which versions are good, by kind and model: [versions.driver] "*H100*" = ["570.195.*"].
    versions: dict[str, dict[str, tuple[str, ...]]] = Field(default_factory=dict)
    agent: AgentSection = Field(default_factory=lambda: AgentSection())

    @field_validator("groups")
    @classmethod
    def _host_lists(cls, value: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        configured(value)
        return value

    @field_validator("versions")
    @classmethod
    def _kinds_of_versions(
        cls, value: dict[str, dict[str, tuple[str, ...]]]
    ) -> dict[str, dict[str, tuple[str, ...]]]:
        for name in value.keys() - set(VERSION_KINDS):
            raise ValueError(f"{name} is no version that is told: {', '.join(VERSION_KINDS)}")
        return value


def store_directory(config: Config) -> Path:
    """Where the embedded store lies: as configured, else below the head's state."""
    if "directory" in config.store.model_fields_set:
        return config.store.directory
    return config.head.state_dir / "store"


def read(file: Path | None, role: str) -> Config:
    """The configuration in ``file`` for ``role`` (``head`` or ``agent``).

    Without a file (None) the packaged one is read if it is there, else the defaults hold.
    Raises ConfigError with every fault, those of files outside included.
    """
    path = file or DEFAULT_FILE
    config = Config() if file is None and not path.exists() else load(Config, path)
    faults = list(faults_outside(config, role))
    if faults:
        raise ConfigError(path if path.exists() else None, faults)
    return config


def faults_outside(config: Config, role: str) -> Iterator[Fault]:
    """What is wrong around the configuration: files that are missing or cannot be read."""
    if role == "agent":
        yield from agent_faults(config.agent)
    else:
        yield from _head_faults(config)


def _head_faults(config: Config) -> Iterator[Fault]:
    head = config.head
    yield from unreadable("head.tokens_file", head.tokens_file, "make it: tocsin token NODE")
    for name in ("certificate_file", "key_file", "client_ca_file"):
        yield from unreadable(f"head.{name}", getattr(head, name))
    if (head.certificate_file is None) != (head.key_file is None):
        yield Fault("head.key_file", "certificate_file and key_file belong together")
    if head.client_ca_file is not None and head.certificate_file is None:
        yield Fault("head.client_ca_file", "needs certificate_file and key_file too")
    if config.slurm.adapter == "rest" and not config.slurm.rest_url:
        yield Fault("slurm.rest_url", "is required: slurm.adapter is rest (http://host:6820)")
    free_seconds = (1 - HOLDS_SHARE) * head.lease.seconds
    if head.lease.directory is not None and free_seconds <= config.slurm.deadline_seconds:
        least = config.slurm.deadline_seconds / (1 - HOLDS_SHARE)
        yield Fault(
            "head.lease.seconds",
            f"must be over {least:g}: a write to Slurm may take slurm.deadline_seconds, and must "
            "have ended before the other head begins",
        )
    for name in ("token_file", "password_file", "ca_file"):
        yield from unreadable(f"influxdb.{name}", getattr(config.influxdb, name))
    yield from _alert_faults(config.alerts)
    for name in ("password_file", "logins_file", "certificate_file", "key_file"):
        yield from unreadable(f"page.{name}", getattr(config.page, name))
    if (config.page.certificate_file is None) != (config.page.key_file is None):
        yield Fault("page.key_file", "certificate_file and key_file belong together")
    yield from _page_faults(config.page)
    conf = config.slurm.conf
    yield from unreadable("slurm.conf", conf, "name slurm.conf, or leave it to SLURM_CONF")


def _alert_faults(alerts: AlertOptions) -> Iterator[Fault]:
    """What keeps mail and webhook from being opened."""
    missing = list(unreadable("alerts.webhook_url_file", alerts.webhook_url_file))
    for name in ("password_file", "ca_file"):
        missing += unreadable(f"alerts.mail.{name}", getattr(alerts.mail, name))
    yield from missing
    if not missing:
        try:
            make_ways(alerts, time.monotonic)
        except WayError as error:
            yield Fault("alerts", str(error))


def _page_faults(page: PageSection) -> Iterator[Fault]:
    """What would open the page to everybody."""
    host, file = Address.parse(page.listen).host, page.password_file
    if not page.enabled:
        return
    if page.logins_file is not None and page.logins_file.exists():
        with contextlib.suppress(OSError, UnicodeDecodeError):
            try:
                parse_tokens(page.logins_file.read_text())
            except TokensError as error:
                yield Fault("page.logins_file", f"{page.logins_file}: {error}")
    if file is None:
        if not is_loopback(host) and page.logins_file is None:
            text = f"is required: the page listens on {host} (password_file would do, to look only)"
            yield Fault("page.logins_file", text)
        return
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if not file.read_text().strip():
            yield Fault("page.password_file", f"{file} holds no password")
