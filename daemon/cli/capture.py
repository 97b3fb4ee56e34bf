"""``tocsin capture``: what the tools of this machine print, without names, as a fixture."""

from __future__ import annotations

import argparse
import getpass
import json
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

from collectors.anonymise import Anonymiser
from collectors.bmc.redfish_capture import capture_redfish, context
from collectors.bmc.targets import NoSecret, Secrets, secret
from collectors.capture import COMMANDS, Captured, capture, of_ports
from collectors.command import Runner
from collectors.sample import clip

EXAMPLES = """examples:
  tocsin capture                               all tools that are here, into a new folder here
  tocsin capture --out /tmp/fabric --only 'ib*' those of InfiniBand
  tocsin capture --list                        what would be run
  tocsin capture --out /tmp/bmc --redfish n1-bmc --user monitor --password-file /root/bmc.pw \\
      --ca-file /etc/tocsin/bmc-ca.pem         what a BMC says over Redfish, instead of the tools

Only reading commands are run, as the user that calls. Names of hosts, people and boards are
replaced by others of the same form; look the files over before you give them away.

Exit code 0: something was captured; 1: nothing was; 2: wrong usage."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin capture``."""
    del verb
    parser.epilog = EXAMPLES
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="a new folder (default: tocsin-capture-DATE-TIME, here)")  # fmt: skip
    parser.add_argument("--only", default="*", metavar="PATTERN", help="of the names of the files")
    parser.add_argument("--name", action="append", default=[], help="a further name to take out")
    parser.add_argument("--redfish", metavar="BMC", help="HOST[:PORT] of a BMC to read instead")
    parser.add_argument("--user", default="", help="of the BMC")
    parser.add_argument("--password-file", default="", metavar="FILE", help="of that user")
    parser.add_argument("--ca-file", default="", metavar="FILE", help="the BMC's authority")
    parser.add_argument("--insecure", action="store_true", help="take any certificate of the BMC")
    parser.add_argument("--list", action="store_true", help="only show the commands")
    parser.add_argument("--json", action="store_true", help="one JSON object a command")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Runs the tools and says how each went."""
    del verb
    if arguments.out is None:
        arguments.out = Path(time.strftime("tocsin-capture-%Y%m%d-%H%M%S"))
    if arguments.redfish:
        return _redfish(arguments)
    known = [*COMMANDS, *of_ports(Path("/"))]
    commands = [one for one in known if fnmatchcase(one.name, arguments.only)]
    if arguments.list:
        print("\n".join(f"{one.name:<28} {' '.join(one.argv)}" for one in commands))
        return 0
    if not commands:
        print("tocsin: --only names no command; see tocsin capture --list", file=sys.stderr)
        return 2
    try:
        if arguments.out.exists():
            # What another capture left must not pass for this machine's.
            print(f"tocsin: {arguments.out} is there already: give a new folder", file=sys.stderr)
            return 2
        arguments.out.mkdir(parents=True)
        names = [*own_names(), *arguments.name]
        done = capture(
            arguments.out, Runner(), Anonymiser(secrets.token_bytes(16), names), commands
        )
    except OSError as error:
        print(f"tocsin: {arguments.out}: {error.strerror or error}", file=sys.stderr)
        return 2
    for one in done:
        print(json.dumps(asdict(one)) if arguments.json else _line(one))
    if not arguments.json:
        print(_sum(done, arguments.out))
    return 0 if any(one.status == "ended" and one.output_bytes for one in done) else 1


def _redfish(arguments: argparse.Namespace) -> int:
    """Reads one BMC and says how it went."""
    try:
        password = secret(arguments.password_file) if arguments.password_file else b""
        tls = context(arguments.ca_file, arguments.insecure)
        host = arguments.redfish.partition(":")[0]
        # Of an address in digits no part is a name: addresses are replaced wherever they stand.
        short = [] if host.replace(".", "").isdigit() else [host, host.split(".")[0]]
        names = [*own_names(), *short, *arguments.name]
        read, fault = capture_redfish(
            arguments.out,
            arguments.redfish,
            Secrets(arguments.user.encode(), password),
            tls,
            Anonymiser(secrets.token_bytes(16), names),
        )
    except NoSecret as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tocsin: {error.filename or arguments.out}: {error.strerror or error}",
              file=sys.stderr)  # fmt: skip
        return 2
    print(f"{read} resources of the BMC are in {arguments.out}" + (f"; {fault}" if fault else ""))
    return 0 if read > 1 else 1


def own_names() -> Iterator[str]:
    """The names of this machine and of who calls."""
    host = socket.gethostname()
    yield from {host, host.split(".")[0], host.partition(".")[2], socket.getfqdn()} - {"localhost"}
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        return
    if user != "root":
        yield user


def _line(one: Captured) -> str:
    how = clip(one.fault, 120) or f"{one.output_bytes} bytes, {one.replaced} names replaced"
    if not one.fault and one.readings is not None:
        how += f", {one.readings} readings, {one.problems} problems"
    return f"{one.command.name:<28} {one.status:<8} {how}"


def _sum(done: list[Captured], out: Path) -> str:
    """What came of it, and what to do now."""
    kept = sum(one.output_bytes > 0 for one in done)
    missing = len({one.command.argv[0] for one in done if one.status == "missing"})
    unread = [one.command.name for one in done if one.output_bytes and not one.fault
              and one.readings == 0]  # fmt: skip
    counted = f"{kept} of {len(done)} commands printed something; {missing} tools are not here."
    if not kept:
        return f"\n{counted} Is this the node that you mean, and are you root?"
    words = [
        f"\n{counted}",
        f"Look through {out} for names that are left (a further one goes by --name), then pack it: "
        f"tar czf {out.name}.tgz {out}",
    ]
    if unread:
        words.append(f"Nothing was read in {', '.join(unread)}: please send these above all.")
    return "\n".join(words)
