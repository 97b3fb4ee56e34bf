#!/usr/bin/env python3
"""Writes an ibsim topology: a two-level fat tree of GPU hosts.

Every host has --rails adapters (one port each); rail r of a host goes to a leaf of rail r, as in
a rail-optimised GPU cluster. Each leaf has one link to each of --spines spines. The text is what
`ibnetdiscover` prints, which is what ibsim reads.

Node ids are H-<host>-r<rail>, S-leaf-<rail>-<n>, S-spine-<n>; these are the names to use in
SIM_HOST and in console commands (31 characters at most).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

SPEEDS = ("SDR", "DDR", "QDR", "FDR", "EDR", "HDR")  # ibsim 0.10 knows no NDR
GUID_CA, GUID_SWITCH = 0xB8CEF60300100000, 0xFC6A1C0300200000
MOST_PORTS, MOST_LIDS = 254, 49151


@dataclass(frozen=True)
class Adapter:
    """One adapter: its node id and description, its leaf and port there, and its link."""

    name: str
    description: str
    rail: int
    leaf: str
    leaf_port: int
    link: str


def main() -> None:
    """Reads the options and prints the topology."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rails", type=int, default=1)
    parser.add_argument("--down", type=int, default=4, help="hosts on one leaf")
    parser.add_argument("--spines", type=int, default=2)
    parser.add_argument("--speed", choices=SPEEDS, default="EDR")
    parser.add_argument(
        "--slow",
        action="append",
        default=[],
        metavar="HOST:WIDTHxSPEED",
        help="a degraded host link, e.g. gpu-0003:1xQDR (rail 0)",
    )
    options = parser.parse_args()
    leaf_count = -(-options.hosts // options.down)
    leaves = [f"S-leaf-{r}-{n}" for r in range(options.rails) for n in range(leaf_count)]
    spines = [f"S-spine-{n}" for n in range(options.spines)]
    if (spines and len(leaves) > MOST_PORTS) or options.down + len(spines) > MOST_PORTS:
        sys.exit(f"more than {MOST_PORTS} ports on a switch: change --down")
    if options.hosts * options.rails + len(leaves) + len(spines) > MOST_LIDS:
        sys.exit(f"more than {MOST_LIDS} end ports: make several fabrics")
    adapters = _adapters(options)
    names = [*leaves, *spines, *(one.name for one in adapters)]
    lids = {name: lid for lid, name in enumerate(names, start=1)}
    guids = {name: GUID_SWITCH + 16 * n for n, name in enumerate([*leaves, *spines])}
    guids |= {one.name: GUID_CA + 16 * n for n, one in enumerate(adapters)}
    print("vendid=0x2c9\ndevid=0x101b\n")
    for one in adapters:  # the first is the host on which ibsim runs commands by default
        print(_adapter(one, lids, guids[one.name]))
    for index, leaf in enumerate(leaves):
        mine = [one for one in adapters if one.leaf == leaf]
        print(_leaf(leaf, index, mine, spines, options, lids, guids))
    for index, spine in enumerate(spines):
        print(_spine(spine, index, leaves, options, lids, guids[spine]))


def _adapters(options: argparse.Namespace) -> list[Adapter]:
    slow = dict(one.split(":", 1) for one in options.slow)
    found = []
    for host in range(options.hosts):
        node = f"gpu-{host + 1:04d}"
        for rail in range(options.rails):
            link = slow.get(node, f"4x{options.speed}") if rail == 0 else f"4x{options.speed}"
            found.append(
                Adapter(
                    f"H-{node}-r{rail}",
                    f"{node} mlx5_{rail}",
                    rail,
                    f"S-leaf-{rail}-{host // options.down}",
                    host % options.down + 1,
                    link,
                )
            )
    return found


def _adapter(one: Adapter, lids: dict[str, int], guid: int) -> str:
    description = one.leaf.removeprefix("S-")
    return (
        f"sysimgguid=0x{guid:x}\ncaguid=0x{guid:x}\n"
        f'Ca\t1 "{one.name}"\t\t# "{one.description}"\n'
        f'[1]({guid + 1:x}) \t"{one.leaf}"[{one.leaf_port}]\t\t'
        f'# lid {lids[one.name]} lmc 0 "{description}" lid {lids[one.leaf]} {one.link}\n'
    )


def _leaf(
    leaf: str,
    index: int,
    adapters: list[Adapter],
    spines: list[str],
    options: argparse.Namespace,
    lids: dict[str, int],
    guids: dict[str, int],
) -> str:
    guid, description = guids[leaf], leaf.removeprefix("S-")
    lines = [
        f"sysimgguid=0x{guid:x}\nswitchguid=0x{guid:x}",
        f'Switch\t{options.down + len(spines)} "{leaf}"\t\t'
        f'# "{description}" enhanced port 0 lid {lids[leaf]} lmc 0',
    ]
    lines += [
        f'[{one.leaf_port}]\t"{one.name}"[1]({guids[one.name] + 1:x}) \t\t'
        f'# "{one.description}" lid {lids[one.name]} {one.link}'
        for one in adapters
    ]
    lines += [
        f'[{options.down + 1 + n}]\t"{spine}"[{index + 1}]\t\t'
        f'# "{spine.removeprefix("S-")}" lid {lids[spine]} 4x{options.speed}'
        for n, spine in enumerate(spines)
    ]
    return "\n".join(lines) + "\n"


def _spine(
    spine: str,
    index: int,
    leaves: list[str],
    options: argparse.Namespace,
    lids: dict[str, int],
    guid: int,
) -> str:
    lines = [
        f"sysimgguid=0x{guid:x}\nswitchguid=0x{guid:x}",
        f'Switch\t{max(len(leaves), 1)} "{spine}"\t\t'
        f'# "{spine.removeprefix("S-")}" base port 0 lid {lids[spine]} lmc 0',
    ]
    lines += [
        f'[{n + 1}]\t"{leaf}"[{options.down + 1 + index}]\t\t'
        f'# "{leaf.removeprefix("S-")}" lid {lids[leaf]} 4x{options.speed}'
        for n, leaf in enumerate(leaves)
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
