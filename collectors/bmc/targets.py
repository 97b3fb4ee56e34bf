"""Which node has which BMC, and how to log in there.

A node's BMC is found by rule (``address = "{node}-bmc"`` for the nodes of a host list) or in a file
of lines ``NODE ADDRESS [GROUP]``; the file wins. Passwords come from files or from systemd
credentials (``credential:NAME``), one set a group, and are read again when they change.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from collectors.options import Options
from collectors.sample import SourceUnavailable
from collectors.slurm.hostlist import HostlistError, expand, valid_name

FILE_LIMIT_BYTES = 8_000_000
SECRET_LIMIT_BYTES = 4_096
DEFAULT = "default"


class Group(BaseModel):
    """How to log in at one group of BMCs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    user: str = ""
    password_file: str = ""
    key_file: str = ""  # IPMI: the BMC key (K_G), where BMCs have one


class BmcOptions(Options):
    """What the sources of BMCs have in common."""

    period_seconds: float = Field(default=60.0, gt=0, le=86_400)
    deadline_seconds: float = Field(default=50.0, gt=0, le=3_600)
    nodes: str = ""  # a host list: gpu[001-512]
    address: str = "{node}-bmc"
    file: str = ""
    user: str = ""
    password_file: str = ""
    key_file: str = ""
    groups: Mapping[str, Group] = Field(default_factory=dict)
    concurrency: int = Field(default=200, ge=1, le=5_000)
    bmc_deadline_seconds: float = Field(default=45.0, gt=0, le=3_600)
    pause_max_seconds: float = Field(default=1_800.0, gt=0, le=86_400)
    in_turn_from: int = Field(default=500, ge=1, le=1_000_000)  # so many BMCs are read in turn
    log_backlog: int = Field(default=50, ge=0, le=10_000)
    log_entries_per_round: int = Field(default=500, ge=1, le=10_000)

    def group(self, name: str) -> Group:
        """The group of this name; ``default`` is made of the options beside it."""
        if name in self.groups:
            return self.groups[name]
        return Group(user=self.user, password_file=self.password_file, key_file=self.key_file)


@dataclass(frozen=True, slots=True)
class Target:
    """One BMC. ``port`` 0 is the protocol's own."""

    node: str
    address: str
    port: int = 0
    group: str = DEFAULT


class NoSecret(Exception):
    """A password cannot be read. The text names the file, never what is in it."""


def targets(options: BmcOptions) -> list[Target]:
    """Every BMC that the options name; SourceUnavailable with why there is none."""
    found: dict[str, Target] = {}
    if options.nodes:
        try:
            names = expand(options.nodes)
        except HostlistError as error:
            raise SourceUnavailable(f"nodes is no host list: {error}") from error
        for name in names:
            address, port = split_address(options.address.replace("{node}", name))
            found[name] = Target(name, address, port)
    if options.file:
        for target in _listed(Path(options.file), options):
            found[target.node] = target
    if not found:
        raise SourceUnavailable("no BMC is named: set nodes and address, or file")
    return list(found.values())


TURNS = 12


def tick_seconds(options: BmcOptions, often: bool = False) -> float:
    """How often the source is to be asked: once a period, or in turn where BMCs are many.

    ``often``: in any case more than once, for what comes between visits.
    """
    try:
        many = often or len(targets(options)) >= options.in_turn_from
    except SourceUnavailable:
        many = False  # said at the first reading
    return options.period_seconds / TURNS if many else options.period_seconds


def _listed(path: Path, options: BmcOptions) -> list[Target]:
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_LIMIT_BYTES)
    except OSError as error:
        raise SourceUnavailable(f"{path} cannot be read: {error.strerror}") from error
    result: list[Target] = []
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if len(words) not in (2, 3) or not valid_name(words[0]):
            raise SourceUnavailable(f"{path} line {number}: not NODE ADDRESS [GROUP]")
        group = words[2] if len(words) == 3 else DEFAULT
        if group != DEFAULT and group not in options.groups:
            raise SourceUnavailable(f"{path} line {number}: no group {group!r} is configured")
        address, port = split_address(words[1])
        result.append(Target(words[0], address, port, group))
    return result


def split_address(text: str) -> tuple[str, int]:
    """Host and port; port 0 where none is given.

    >>> split_address("[fd00::1]:6230")
    ('fd00::1', 6230)
    """
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, _port(rest.removeprefix(":"))
    if text.count(":") == 1:
        host, _, rest = text.partition(":")
        return host, _port(rest)
    return text, 0


def _port(text: str) -> int:
    return int(text) if text.isdigit() and int(text) < 65_536 else 0


def secret(name: str) -> bytes:
    """The first line of a secret's file, without its line end.

    ``credential:NAME`` is a credential that systemd handed to this service
    (LoadCredential=, systemd.exec(5)). A file that everybody may read is refused.
    """
    if name.startswith("credential:"):
        folder = os.environ.get("CREDENTIALS_DIRECTORY")
        if not folder:
            raise NoSecret(f"{name}: systemd handed no credentials to this service")
        path = Path(folder) / Path(name.removeprefix("credential:")).name
    else:
        path = Path(name)
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & stat.S_IROTH:
                raise NoSecret(f"{path} can be read by everybody: chmod o-r it")
            raw = file.read(SECRET_LIMIT_BYTES)
    except OSError as error:
        raise NoSecret(f"{path} cannot be read: {error.strerror}") from error
    lines = raw.splitlines()
    return lines[0] if lines else b""


@dataclass(frozen=True, slots=True)
class Secrets:
    """User, password and BMC key of a group, never printed."""

    user: bytes
    password: bytes
    key: bytes = b""

    def __repr__(self) -> str:
        return "Secrets(...)"


def secrets_of(group: Group) -> Secrets:
    """What a group logs in with; NoSecret where a file cannot be read."""
    password = secret(group.password_file) if group.password_file else b""
    key = secret(group.key_file) if group.key_file else b""
    return Secrets(group.user.encode(), password, key)
