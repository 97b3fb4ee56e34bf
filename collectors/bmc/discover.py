"""Finds BMCs in a network and proposes which node each belongs to.

    python -m collectors.bmc.discover 10.9.0.0/22 > bmcs

Prints lines ``NODE ADDRESS`` as the option ``file`` of the sources ``ipmi`` and ``redfish`` takes
them, for a person to look over. It is no option of the sources themselves: they would send the
password to whatever answers. Asked is what every BMC answers to strangers: Get Channel
Authentication Capabilities (IPMI 2.0, section 22.13) and the root of the Redfish service. A node's
name comes from the reverse entry of the name service.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import re
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from collectors.bmc.redfish_http import session
from collectors.sample import clip
from collectors.slurm.hostlist import valid_name

# RMCP header, session of version 1.5 without authentication, Get Channel Authentication
# Capabilities for this channel and an administrator.
QUESTION = bytes.fromhex("0600ff07000000000000000000092018c88100388e04b5")
ADDRESS_LIMIT = 65_536
NAME_PATTERN = r"(?P<node>[^.]+?)[-_.](?:bmc|ipmi|idrac|ilo|xcc|oob|mgmt)(?:\..*)?"
BURST, BURST_SECONDS = 64, 0.02  # some 3,000 questions a second
ROOT_LIMIT_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Found:
    """One BMC. ``node`` is empty where its name tells none; ``product`` is its own word."""

    address: str
    ipmi: bool
    redfish: bool
    name: str = ""
    node: str = ""
    product: str = ""


def addresses_of(networks: Sequence[str]) -> list[str]:
    """Every address of the networks (``10.9.0.0/22``). ValueError for none and for too many."""
    found: dict[str, None] = {}
    for text in networks:
        network = ipaddress.ip_network(text, strict=False)
        if network.num_addresses > ADDRESS_LIMIT:
            raise ValueError(f"{text}: over {ADDRESS_LIMIT} addresses")
        found.update((str(one), None) for one in network.hosts())
    if len(found) > ADDRESS_LIMIT:
        raise ValueError(f"over {ADDRESS_LIMIT} addresses together")
    return list(found)


def node_of(name: str, pattern: re.Pattern[str]) -> str:
    """The node that a BMC's name tells, or ''."""
    match = pattern.fullmatch(name)
    node = match["node"] if match else ""
    return node if node and valid_name(node) else ""


class _Ear(asyncio.DatagramProtocol):
    """Hears who answers in the form of IPMI."""

    def __init__(self) -> None:
        self.heard: set[str] = set()

    def datagram_received(self, data: bytes, addr: tuple[object, ...]) -> None:
        # RMCP, class IPMI, and an answer (network function 7) to this command.
        if len(data) >= 22 and data[0] == 6 and data[3] & 0x1F == 7 and data[19] == 0x38:
            self.heard.add(str(addr[0]))


async def ask_ipmi(
    addresses: Sequence[str], port: int = 623, seconds: float = 2.0, tries: int = 2
) -> set[str]:
    """The addresses that answer as BMCs, asked ``tries`` times, each with ``seconds`` to answer."""
    heard: set[str] = set()
    for family, some in _by_family(addresses).items():
        loop = asyncio.get_running_loop()
        transport, ear = await loop.create_datagram_endpoint(_Ear, family=family)
        try:
            for _ in range(tries):
                for place, address in enumerate(one for one in some if one not in ear.heard):
                    if place % BURST == BURST - 1:
                        await asyncio.sleep(BURST_SECONDS)
                    with contextlib.suppress(OSError):
                        transport.sendto(QUESTION, (address, port))
                await asyncio.sleep(seconds)
        finally:
            transport.close()
        heard |= ear.heard & set(some)
    return heard


def _by_family(addresses: Sequence[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for one in addresses:
        family = socket.AF_INET6 if ":" in one else socket.AF_INET
        found.setdefault(family, []).append(one)
    return found


async def ask_redfish(
    addresses: Sequence[str], port: int = 443, seconds: float = 3.0
) -> dict[str, str]:
    """Address -> vendor and product (or '') of those that have a Redfish service.

    Certificates are not looked at: nothing secret is sent, and nothing is believed but that there
    is a service.
    """
    found: dict[str, str] = {}
    places = asyncio.Semaphore(200)

    async def ask(http: aiohttp.ClientSession, address: str) -> None:
        host = f"[{address}]" if ":" in address else address
        async with places:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
                url = f"https://{host}:{port}/redfish/v1/"
                async with http.get(url, ssl=False, allow_redirects=False) as answer:
                    raw = await answer.content.read(ROOT_LIMIT_BYTES)
                text = raw.decode("utf-8", "replace")
                if answer.status == 200 and '"RedfishVersion"' in text:
                    words = re.findall(r'"(?:Vendor|Product)"\s*:\s*"([^"]{1,60})"', text)
                    found[address] = clip(" ".join(words), 80)

    timeout = aiohttp.ClientTimeout(total=seconds)
    async with session(timeout=timeout) as http:
        await asyncio.gather(*(ask(http, one) for one in addresses))
    return found


def reverse_name(address: str) -> str:
    """What the name service calls an address, or ''."""
    try:
        return socket.gethostbyaddr(address)[0]
    except OSError:
        return ""


async def discover(
    networks: Sequence[str],
    pattern: re.Pattern[str],
    ipmi_port: int = 623,
    redfish_port: int = 443,
    name_of: Callable[[str], str] = reverse_name,
    seconds: float = 2.0,
) -> list[Found]:
    """Every BMC in the networks, in order of address."""
    addresses = addresses_of(networks)
    by_ipmi, by_redfish = await asyncio.gather(
        ask_ipmi(addresses, ipmi_port, seconds), ask_redfish(addresses, redfish_port, seconds + 1)
    )
    there = [one for one in addresses if one in by_ipmi or one in by_redfish]
    names = await asyncio.gather(*(asyncio.to_thread(name_of, one) for one in there))
    return [
        Found(
            address,
            address in by_ipmi,
            address in by_redfish,
            name,
            node_of(name, pattern),
            by_redfish.get(address, ""),
        )
        for address, name in zip(there, names, strict=True)
    ]


def lines_of(found: Sequence[Found]) -> list[str]:
    """The lines of the file; what is not sure is a comment.

    A node that two BMCs claim is given to neither.
    """
    lines: list[str] = []
    nodes = [one.node for one in found]
    for one in found:
        speaks = " ".join(w for w, yes in (("ipmi", one.ipmi), ("redfish", one.redfish)) if yes)
        words = f"# {speaks} {one.product}".rstrip()
        if one.node and nodes.count(one.node) == 1:
            lines.append(f"{one.node} {one.address} {words}")
        else:
            why = "claimed twice" if one.node else f"no node in the name {one.name!r}"
            lines.append(f"# ? {one.address} {words}; {why}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the file. Exit code 0: BMCs were found; 1: none; 2: wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m collectors.bmc.discover",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("networks", nargs="+", metavar="NETWORK")
    parser.add_argument("--name", default=NAME_PATTERN, help="pattern of BMC names: (?P<node>...)")
    parser.add_argument("--ipmi-port", type=int, default=623)
    parser.add_argument("--redfish-port", type=int, default=443)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long an answer may take")
    given = parser.parse_args(arguments)
    try:
        pattern = re.compile(given.name)
        if "node" not in pattern.groupindex:
            raise ValueError("--name needs a group (?P<node>...)")
        ports = (given.ipmi_port, given.redfish_port)
        found = asyncio.run(
            discover(given.networks, pattern, *ports, seconds=min(60.0, max(0.1, given.seconds)))
        )
    except (ValueError, re.error) as error:
        sys.stderr.write(f"bmc_discover: {error}\n")
        return 2
    sys.stdout.write("".join(f"{line}\n" for line in lines_of(found)))
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
