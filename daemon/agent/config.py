"""The agent's part of the configuration, without what only the head needs.

A file that holds nothing but ``[agent]`` is read here. One that holds other sections too is for
:mod:`daemon.config`, which knows them all.
"""

from __future__ import annotations

import os
import socket as sockets
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from daemon.agent.options import AgentOptions
from daemon.agent.sources import AgentSources
from daemon.settings import ConfigError, Fault, Section, load

# Keys that name a file with a secret in it.
SECRETS = frozenset(
    {"tokens_file", "token_file", "password_file", "webhook_url_file", "key_file", "logins_file"}
)

DEFAULT_FILE = Path("/etc/tocsin/tocsin.toml")


def short_host_name() -> str:
    """This machine's name as Slurm usually has it: without the domain."""
    return sockets.gethostname().split(".")[0]


class AgentSection(AgentOptions):
    """Section ``[agent]``: one compute node's agent. ``node`` is Slurm's NodeName."""

    # Slurm's NodeName of this machine; its host name without the domain if not said.
    node: str = Field(default_factory=short_host_name, min_length=1, max_length=255)
    # Where cursors and baselines are kept.
    state_dir: Path = Path("/var/lib/tocsin-agent")
    # What stands before /sys, /proc and /dev: another folder only in tests and containers.
    root: Path = Path("/")
    sources: AgentSources = AgentSources()


class AgentFile(Section):
    """A file for an agent alone."""

    agent: AgentSection = Field(default_factory=lambda: AgentSection())


def read_agent(file: Path | None) -> AgentSection:
    """The agent's section of ``file``, or of the packaged file, or the defaults.

    Raises ConfigError with every fault, those of files outside and of other sections included.
    """
    path = file or DEFAULT_FILE
    if file is None and not path.exists():
        section = AgentSection()
    elif _only_agent(path):
        section = load(AgentFile, path).agent
    else:
        # The head's sections are checked as well: one file, one set of words about it.
        from daemon.config import read

        return read(path, "agent").agent
    faults = list(agent_faults(section))
    if faults:
        raise ConfigError(path if path.exists() else None, faults)
    return section


def _only_agent(path: Path) -> bool:
    """Whether the file has no other section; what can't be read at all is told by ``load``."""
    try:
        with path.open("rb") as file:
            return set(tomllib.load(file)) <= {"agent"}
    except (OSError, ValueError, RecursionError):
        return True


def agent_faults(section: AgentSection) -> Iterator[Fault]:
    """What is wrong around the agent's section: files that are missing or cannot be read."""
    uplink = section.uplink
    for name in ("token_file", "ca_file", "certificate_file", "key_file"):
        yield from unreadable(f"agent.uplink.{name}", getattr(uplink, name))
    if uplink.token_file is None and uplink.certificate_file is None:
        yield Fault(
            "agent.uplink.token_file",
            "is required: the head refuses unknown senders "
            "(make one on the head: tocsin token NODE)",
        )
    if (uplink.certificate_file is None) != (uplink.key_file is None):
        yield Fault("agent.uplink.key_file", "certificate_file and key_file belong together")


def unreadable(path: str, file: Path | None, remedy: str = "") -> Iterator[Fault]:
    """A fault where ``file`` cannot be read, or holds a secret that others may read."""
    if file is None:
        return
    more = f"; {remedy}" if remedy else ""
    try:
        with file.open("rb") as opened:
            opened.read(1)
            mode = os.fstat(opened.fileno()).st_mode
        if path.rpartition(".")[2] in SECRETS and mode & stat.S_IRWXO:
            yield Fault(path, f"{file} holds a secret and others may read it: chmod o= {file}")
    except FileNotFoundError:
        yield Fault(path, f"{file} does not exist{more}")
    except IsADirectoryError:
        yield Fault(path, f"{file} is a folder, not a file")
    except OSError as error:
        yield Fault(path, f"{file} cannot be read: {error.strerror}")
