"""A head that is not one: a made-up, seeded fleet behind ``HeadView``, for the page's tests.

Every state that the page can show is in it. ``serve`` puts the real page before it.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from aiohttp import web

from daemon.page.app import PageOptions, page_app
from daemon.page.view import (
    AlertView,
    DecisionView,
    Explanation,
    FleetView,
    GpuView,
    GuardView,
    LineView,
    NodeDetail,
    NodeView,
    Refused,
    SeriesView,
    SignalView,
    SlurmView,
    SourceView,
    TimelineEntry,
    UnknownSubject,
)
from daemon.versions import plain_groups
from models.skew import Reading, groups

NOW_NS = 1_788_000_000_000_000_000
SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS

KINDS = {
    "temperature_celsius": ("gauge", "GPU temperature"),
    "memory_temperature_celsius": ("gauge", "memory temperature"),
    "power_watts": ("gauge", "power drawn"),
    "utilization_ratio": ("gauge", "share of time with a kernel running"),
    "ecc_corrected_total": ("counter", "corrected memory errors"),
    "sm_clock_hertz": ("gauge", "SM clock"),
    "remapped_rows_uncorrected_total": ("counter", "remapped rows"),
    "ecc_uncorrected_total": ("counter", "uncorrected memory errors"),
    "nvlink_crc_errors_total": ("counter", "NVLink CRC errors"),
    "pcie_replays_total": ("counter", "PCIe replays"),
    "memory_used_bytes": ("gauge", "memory used"),
    "sm_activity_ratio": ("gauge", "share of multiprocessors at work"),
    "graphics_activity_ratio": ("gauge", "share of time in which any engine worked"),
}


def skewed(now_ns: int) -> list[dict[str, object]]:
    """A fleet in which three nodes run another driver and one card another firmware."""
    found = [
        Reading(f"gpu-{i + 1:04d}", "driver", "", "570.195.03", now_ns - 30 * DAY_NS, now_ns)
        for i in range(64)
    ]
    for place, old in ((6, "535.261.03"), (11, "535.261.03"), (40, "550.163.01")):
        found[place] = replace(found[place], text=old, since_ns=now_ns - 3 * DAY_NS)
    boards = [
        Reading(one.node, code, "mlx5_0", text, now_ns - 9 * DAY_NS, now_ns)
        for one in found
        for code, text in (("nic_board", "MT_0000000838"), ("nic_firmware", "28.39.1002"))
    ]
    boards[9] = replace(boards[9], text="28.36.1010", before="28.39.1002", since_ns=now_ns - DAY_NS)
    gpus = [
        Reading(one.node, "model", "0000:1b:00", "NVIDIA H100 80GB HBM3", 0, now_ns)
        for one in found
    ]
    return plain_groups(groups([*found, *boards, *gpus]))


class PretendHead:
    """64 to 10,000 nodes; the troubled ones have fixed places."""

    def __init__(self, nodes: int = 64, now_ns: int = NOW_NS) -> None:
        self.now_ns = now_ns
        self.words: list[tuple[str, str, str]] = []
        self.versions: list[dict[str, object]] = []
        self.profiled = False  # whether DCGM counts activity here
        self._random = random.Random(7)
        self._nodes = [self._node(i, nodes) for i in range(nodes)]

    def _node(self, i: int, of: int) -> NodeView:
        dice = self._random.random()
        width = len(str(of))
        busy = dice < 0.86
        made = {
            "name": f"gpu-{i + 1:0{max(4, width)}d}",
            "state": "busy" if busy else "idle",
            "slurm_state": "ALLOCATED" if busy else "IDLE",
            "owner": "",
            "reason": "",
            "voice": "",
            "guard": "",
            "risk": round(0.002 + 0.02 * self._random.random(), 4),
            "device": "",
            "code": "",
            "gpus": 8,
            "gpus_allocated": 8 if busy else 0,
            "gpu_marks": "........",
            "jobs": 1 if busy else 0,
            "group": f"r{i // (8 if of <= 128 else 32) + 1:02d}",
            "heard_seconds": 3.0 + i % 7,
        }
        trouble = self._trouble(i, of)
        return NodeView(**(made | trouble))  # type: ignore[arg-type]

    def _trouble(self, i: int, of: int) -> dict[str, object]:
        if i == 17:
            return {
                "state": "draining", "slurm_state": "ALLOCATED+DRAIN", "owner": "tocsin",
                "reason": "tocsin:x79 gpu3 9f2c; fell off the bus; tocsin explain 9f2c",
                "voice": "fact", "risk": 0.91, "device": "gpu3", "code": "x79",
                "gpu_marks": "...f....", "guard": "ours", "gpus_allocated": 8,
            }  # fmt: skip
        if i == 42 % of:
            return {
                "state": "busy", "slurm_state": "MIXED", "voice": "risk", "risk": 0.62,
                "device": "gpu5", "gpu_marks": ".....r..", "guard": "approval", "code": "risk",
            }  # fmt: skip
        if i in (8, 51):
            return {
                "state": "drained", "slurm_state": "IDLE+DRAIN", "owner": "other",
                "reason": "swap PSU 2", "gpus_allocated": 0, "jobs": 0,
            }  # fmt: skip
        if i == 30:
            return {"state": "down", "slurm_state": "DOWN*", "owner": "other", "risk": None,
                    "reason": "Not responding", "gpus_allocated": 0, "jobs": 0,
                    "gpu_marks": "????????", "heard_seconds": 4000.0}  # fmt: skip
        if i == 59 % of:
            return {"voice": "silence", "gpu_marks": "ssssssss", "heard_seconds": 412.0,
                    "risk": None, "code": "silent"}  # fmt: skip
        if i == 35:
            return {
                "state": "drained", "slurm_state": "IDLE+DRAIN", "owner": "tocsin",
                "reason": "tocsin:remap gpu0 41d0; row remap failed; tocsin explain 41d0",
                "voice": "fact", "device": "gpu0", "code": "remap", "risk": 0.4,
                "gpu_marks": "f.......", "gpus_allocated": 0, "jobs": 0, "guard": "ours",
            }  # fmt: skip
        if i > 60 and i % 97 == 0:
            return {"voice": "risk", "risk": 0.2 + (i % 7) / 10, "gpu_marks": ".r......"}
        return {}

    async def fleet(self) -> FleetView:
        states = Counter(node.state for node in self._nodes)
        return FleetView(
            time_ns=self.now_ns,
            cluster="alpine",
            version="0.1.0",
            mode="act",
            speed=1.0,
            uptime_seconds=86400 * 12.3,
            nodes=len(self._nodes),
            gpus=8 * len(self._nodes),
            gpus_allocated=sum(n.gpus_allocated for n in self._nodes),
            gpus_out_of_service=8 * (states["drained"] + states["draining"] + states["down"]),
            states=states,
            drains_ours=sum(n.owner == "tocsin" for n in self._nodes),
            drains_last_hour=1,
            drains_per_hour_cap=4,
            drains_cap=6,
            approvals_waiting=1,
            breaker_open=False,
            breaker_text="",
            coverage_ratio=0.992,
            agents_heard=len(self._nodes) - 2,
            values_per_second=len(self._nodes) * 36.4,
            store="embedded, 2.1 GiB",
            model="rival",
            horizon_seconds=86400.0,
            slurm=SlurmView("cli", True, 4.0),
            sources=(
                SourceView("nvml", len(self._nodes) - 2, 2, 412.0, "no answer in 5 s"),
                SourceView("kernel_log", len(self._nodes) - 2, 2),
                SourceView("host", len(self._nodes) - 1, 1),
                SourceView("slurm", 1, 0),
            ),
            alerts=(
                AlertView(
                    "drain/9f2c", 3, "gpu-0018 taken out of service: gpu3 fell off the bus (x79)",
                    "", "gpu-0018", self.now_ns - 95 * SECOND_NS,
                ),
                AlertView(
                    "risk/77aa", 2, "gpu-0043: gpu5 may fail, 0.62 within 24 h; waits for a yes",
                    "", "gpu-0043", self.now_ns - 610 * SECOND_NS,
                ),
                AlertView(
                    "silence/gpu-0060", 1, "gpu-0060 is silent", "", "gpu-0060",
                    self.now_ns - 412 * SECOND_NS,
                ),
            ),
        )  # fmt: skip

    async def nodes(self) -> Sequence[NodeView]:
        return self._nodes

    def _find(self, name: str) -> NodeView:
        for node in self._nodes:
            if node.name == name:
                return node
        raise UnknownSubject(f"no node {name}")

    async def node(self, name: str) -> NodeDetail:
        node = self._find(name)
        gpus = tuple(
            GpuView(
                i, f"GPU-{i}", "NVIDIA H100 80GB HBM3", node.gpu_marks[i],
                node.risk if node.device == f"gpu{i}" else 0.01,
                61.0 + i % 3 + (17 if node.device == f"gpu{i}" else 0), 70.0, 640.0, 0.97,
                60e9, 12.0 * (node.device == f"gpu{i}"), 0.0,
                ("12 K above its siblings at like load",) if node.device == f"gpu{i}" else (),
            )
            for i in range(8)
        )  # fmt: skip
        verdict = (
            "In service: nothing speaks against it. Highest risk 0.01 (gpu2), drain from 0.50."
        )
        if node.owner == "tocsin":
            verdict = "Draining since 14:38:24: gpu3 fell off the bus (XID 79). Job 81244 runs on."
        if node.guard == "approval":
            verdict = "Would be drained for the risk of gpu5, and waits for a person's yes."
        entries = (
            TimelineEntry(self.now_ns - 93 * SECOND_NS, "slurm", "DRAIN set and read back", 1),
            TimelineEntry(
                self.now_ns - 94 * SECOND_NS, "decision", "drain: x79 gpu3", 2, "gpu3", id="9f2c"
            ),
            TimelineEntry(
                self.now_ns - 95 * SECOND_NS, "event",
                "NVRM: Xid (PCI:0000:61:00): 79, pid=4711, GPU has fallen off the bus.",
                3, "gpu3",
            ),
            TimelineEntry(self.now_ns - 840 * SECOND_NS, "risk", "risk 0.34, was 0.02", 1, "gpu3"),
            TimelineEntry(self.now_ns - 86400 * SECOND_NS, "operator", "resumed", 0, user="ines"),
        )  # fmt: skip
        return NodeDetail(
            node, gpus, (SourceView("nvml", 1, 0, 3.0), SourceView("kernel_log", 1, 0, 1.0)),
            verdict, entries if node.voice else entries[-1:], False, ("train",), ("81244",),
        )  # fmt: skip

    def _decision(self, i: int) -> DecisionView:
        rows = [
            ("9f2c41d07a", "gpu-0018", "gpu3", "drain", "fact", "xid", "x79", "", "draining", 0.97,
             "tocsin:x79 gpu3 9f2c; fell off the bus; risk 0.91/24h; tocsin explain 9f2c", ""),
            ("77aa9d1c3b", "gpu-0043", "gpu5", "hold", "risk", "risk", "risk", "approval",
             "waiting", 0.62, "tocsin:risk gpu5 77aa; 12 K hotter than siblings; risk 0.62/24h",
             "waits for a person's yes"),
            ("c0ffee1234", "gpu-0009", "gpu1", "hold", "fact", "xid", "x48", "foreign", "refused",
             1.0, "tocsin:x48 gpu1 c0ff; double-bit ECC error", "drained by root: swap PSU 2"),
            ("41d0aa9001", "gpu-0036", "gpu0", "drain", "fact", "row_remap", "remap", "",
             "drained", 1.0, "tocsin:remap gpu0 41d0; row remap failed; tocsin explain 41d0", ""),
            ("5be0aa9001", "gpu-0052", "gpu6", "hold", "history", "risk", "risk", "cap_hour",
             "refused", 0.55, "tocsin:risk gpu6 5be0; third XID 94 in 28 d; risk 0.55/24h",
             "1 of 1 drains this hour are used"),
            ("1be0aa9002", "gpu-0052", "", "resume", "fact", "return", "clean", "", "returned",
             0.0, "clean for 30 min, proof test passed", ""),
        ]  # fmt: skip
        row = rows[i % len(rows)]
        return DecisionView(
            row[0], self.now_ns - (94 + 517 * i) * SECOND_NS, row[1], row[2], "gpu", row[3], row[4],
            row[5], row[6], "act", row[10], row[7], row[11], row[9], 2, "restart the node", row[8],
            "ines" if row[3] == "resume" else "",
        )  # fmt: skip

    async def decisions(self, limit: int, node: str = "") -> Sequence[DecisionView]:
        found = [self._decision(i) for i in range(12)]
        return [d for d in found if not node or d.node == node][:limit]

    async def series(
        self, node: str, measurement: str, fields: Sequence[str], minutes: float, points: int
    ) -> Sequence[SeriesView]:
        known = self._find(node)
        end_ms = self.now_ns // 1_000_000
        step = minutes * 60_000 / points
        times = [int(end_ms - (points - 1 - i) * step) for i in range(points)]
        made = []
        for field in fields:
            if field not in KINDS:
                raise UnknownSubject(f"measurement {measurement} has no field {field}")
            kind, text = KINDS[field]
            read = range(0 if field.endswith("_activity_ratio") and not self.profiled else 8)
            lines = tuple(
                LineView(f"gpu{g}", self._values(field, g, known.device == f"gpu{g}", points))
                for g in read
            )
            made.append(
                SeriesView(node, measurement, field, kind, text, times[0], end_ms, times, lines)
            )
        return made

    def _values(self, field: str, gpu: int, sick: bool, points: int) -> list[float | None]:
        noise = random.Random(f"{field}{gpu}")
        base, swing, drift = {
            "temperature_celsius": (62.0, 1.6, 19.0),
            "memory_temperature_celsius": (71.0, 1.8, 17.0),
            "power_watts": (655.0, 18.0, -150.0),
            "utilization_ratio": (0.96, 0.02, -0.3),
            "ecc_corrected_total": (0.0, 0.0, 48.0),
            "sm_clock_hertz": (1.93e9, 1.5e7, -5e8),
            "memory_used_bytes": (6.1e10, 1e8, 0.0),
        }.get(field, (0.0, 0.0, 0.0))
        values: list[float | None] = []
        for i in range(points):
            share = i / points
            value = base * (1 + gpu % 3 * 0.008) + swing * (
                noise.gauss(0, 0.5) + math.sin(i / 9 + gpu)
            )
            if 0.28 < share < 0.33 and field in ("power_watts", "utilization_ratio"):
                value *= 0.35
            if sick:
                value += drift * max(0.0, share - 0.45) ** 1.6 / 0.55**1.6
            if field == "ecc_corrected_total":
                value = float(int(value))
            if field == "utilization_ratio":
                value = min(1.0, value)
            lost = sick and share > 0.955
            values.append(None if lost else round(value, 4))
        return values

    async def explain(self, subject: str) -> Explanation:
        decision = next(
            (self._decision(i) for i in range(6) if self._decision(i).id.startswith(subject)), None
        )
        node = self._find(decision.node if decision else subject)
        detail = await self.node(node.name)
        return Explanation(
            subject=subject,
            node=node.name,
            title=f"{node.name}: " + (decision.reason if decision else detail.verdict),
            sentences=(
                detail.verdict,
                "XID 79 is in the catalogue as fatal: the GPU cannot be reached over PCIe.",
            ),
            decision=decision,
            voice=node.voice,
            rule=decision.rule if decision else "",
            signals=(
                SignalView("temperature_excess_kelvin", 17.2, 8.0, 0.52, "hotter than siblings"),
                SignalView("ecc_corrected_rate", 0.8, 0.1, 0.2, "corrected errors a minute"),
            ),
            guards=(
                GuardView("foreign", True, "no reason set by others"),
                GuardView("cap_hour", True, "0 of 4 used"),
                GuardView("coverage", True, "8 of 8 sources heard"),
            ),
            evidence=("NVRM: Xid (PCI:0000:61:00): 79, pid=4711, GPU has fallen off the bus.",),
            timeline=detail.timeline,
            similar=("gpu-0043 gpu5 is as hot, yet waits for a yes: risk 0.62 needs approval",),
        )

    async def approve(self, case: str, user: str) -> str:
        if not case.startswith("77aa"):
            raise Refused(f"case {case} waits for nobody")
        self.words.append(("approve", case, user))
        return f"{case} approved by {user}"

    async def deny(self, case: str, user: str) -> str:
        self.words.append(("deny", case, user))
        return f"{case} denied by {user}"

    async def resume(self, node: str, user: str) -> str:
        if self._find(node).owner != "tocsin":
            raise Refused(f"{node} was not drained by tocsin")
        self.words.append(("resume", node, user))
        return f"{node} resumed by {user}"

    async def prove(self, node: str, user: str) -> str:
        raise Refused(f"{node} is not held by tocsin")

    async def lock(self, node: str, user: str, locked: bool) -> str:
        self.words.append(("lock" if locked else "unlock", self._find(node).name, user))
        return f"{node} locked by {user}"

    async def close_breaker(self, user: str) -> str:
        self.words.append(("close_breaker", "", user))
        return "breaker closed"

    async def verdict(self, case: str, right: bool, user: str) -> str:
        self.words.append((f"verdict {right}", case, user))
        return "noted"

    def change(self, name: str, **fields: object) -> None:
        """Puts another row in the place of ``name``'s."""
        import dataclasses

        self._nodes = [
            dataclasses.replace(n, **fields) if n.name == name else n  # type: ignore[arg-type]
            for n in self._nodes
        ]


def beside(head: PretendHead) -> list[web.RouteDef]:
    """What the head's own modules answer beside the page."""

    async def versions(request: web.Request) -> web.Response:
        return web.json_response({"groups": head.versions})

    return [web.get("/api/v1/versions", versions)]


async def serve(nodes: int, port: int) -> None:
    """The real page before a pretended head, until it is ended."""
    head = PretendHead(nodes)
    head.versions = skewed(head.now_ns)
    app = page_app(head, PageOptions())
    app.add_routes(beside(head))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
