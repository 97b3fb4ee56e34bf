"""Reads ``nvidia-smi topo -m``: how every GPU and network card reaches every other.

The header is underlined by terminal escapes, cells are set apart by tabs (sometimes two), a
legend follows. Relations from near to far: NV# (that many NVLinks), PIX, PXB, PHB, NODE, SYS.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations

from collectors.events import INFO, WARNING, event
from collectors.gpu.findings import Findings, Text, lines, without_escapes
from collectors.sample import Problem, Sample

ROWS_MOST = 512

_PART = re.compile(r"(?:GPU|NIC)\d{1,3}|mlx\d_\d{1,3}|bnxt_re\d{1,3}")
_RELATION = re.compile(r"NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|X")
_LEGEND_NIC = re.compile(r"\s*(NIC\d{1,3}):\s*(\S{1,40})\s*")


@dataclass
class Matrix:
    """Relations by (from, to), CPU and memory affinity by part, real names of network cards."""

    relations: dict[tuple[str, str], str] = field(default_factory=dict)
    numa: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def gpus(self) -> list[str]:
        """The GPUs in order of index."""
        found = {one for one, _ in self.relations if one.startswith("GPU")}
        return sorted(found, key=lambda name: int(name[3:]))

    def cards(self) -> list[str]:
        """The network cards."""
        parts = {part for pair in self.relations for part in pair}
        return sorted(part for part in parts if not part.startswith("GPU"))


def parse(text: Text, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """An event for each GPU with its relations, and one for each fault. Never raises."""
    findings = Findings()
    matrix = read_matrix(text, findings)
    for gpu in matrix.gpus():
        findings.add(
            event(
                node,
                "topology",
                gpu.lower(),
                now_ns,
                text=relations_of(matrix, gpu),
                severity=INFO,
                device=gpu.lower(),
            )
        )
    for device, words in faults(matrix):
        findings.add(
            event(node, "topology", "fault", now_ns, text=words, severity=WARNING, device=device)
        )
    samples, problems = findings.close()
    if not samples and not problems:
        problems.append(Problem("no matrix of nvidia-smi topo in this text"))
    return samples, problems


def read_matrix(text: Text, findings: Findings) -> Matrix:
    """The matrix; a row that does not fit under the header is a problem and left out."""
    matrix = Matrix()
    header: list[str] = []
    numa_at = -1
    rows = 0
    for raw, whole in lines(text, findings):
        line = without_escapes(raw)
        cells = [cell.strip() for cell in line.split("\t")]
        first = next((cell for cell in cells if cell), "")
        if not _PART.fullmatch(first):
            named = _LEGEND_NIC.fullmatch(line)
            if named is not None:
                matrix.names[named[1]] = named[2]
            elif not header and line.strip():
                findings.problem("not a line that nvidia-smi topo prints", line)
            continue
        if not header:
            header = [cell for cell in cells if _PART.fullmatch(cell)]
            titles = [cell for cell in cells if cell]
            numa_at = titles.index("NUMA Affinity") if "NUMA Affinity" in titles else -1
            continue
        relations = cells[1 : len(header) + 1]
        if not whole or not all(_RELATION.fullmatch(one) for one in relations):
            findings.problem("a row that does not fit under its header: left out", line)
            continue
        rows += 1
        if len(relations) != len(header) or rows > ROWS_MOST:
            findings.problem("a row that does not fit under its header: left out", line)
            continue
        for other, relation in zip(header, relations, strict=True):
            if other != first:
                matrix.relations[first, other] = relation
        if 0 <= numa_at < len(cells) - 1 and cells[numa_at + 1]:
            matrix.numa[first] = cells[numa_at + 1]
    return matrix


def relations_of(matrix: Matrix, gpu: str) -> str:
    """One GPU in words: its NVLinks to the others and its nearest network cards.

    >>> relations_of(Matrix({("GPU0", "GPU1"): "NV18", ("GPU0", "NIC0"): "PIX"}), "GPU0")
    'GPU0: NV18 to 1 GPU; PIX to NIC0'
    """
    to_gpus = Counter(
        relation
        for (one, other), relation in sorted(matrix.relations.items())
        if one == gpu and other.startswith("GPU")
    )
    words = [
        f"{relation} to {count} GPU{'s' if count > 1 else ''}"
        for relation, count in to_gpus.most_common()
    ]
    near = nearest(matrix, gpu)
    if near:
        names = [matrix.names.get(card, card) for card in near[1]]
        words.append(f"{near[0]} to {', '.join(names)}")
    if gpu in matrix.numa:
        words.append(f"NUMA {matrix.numa[gpu]}")
    return f"{gpu}: {'; '.join(words)}"


_NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")


def nearest(matrix: Matrix, gpu: str) -> tuple[str, list[str]] | None:
    """The nearest relation to a network card, and the cards that have it."""
    for relation in _NEAR:
        cards = [card for card in matrix.cards() if matrix.relations.get((gpu, card)) == relation]
        if cards:
            return relation, cards
    return None


def faults(matrix: Matrix) -> list[tuple[str, str]]:
    """(device, words) of what is not as with its peers on the same node.

    NVLink: where most pairs have links, a pair without, or with fewer, is a fault. Network: a GPU
    whose nearest card is farther away than for most GPUs.
    """
    found: list[tuple[str, str]] = []
    gpus = matrix.gpus()
    pairs = {
        (one, other): matrix.relations.get((one, other), "") for one, other in combinations(gpus, 2)
    }
    usual, count = _usual(list(pairs.values()))
    if usual.startswith("NV") and count * 2 > len(pairs):
        found += [
            (one.lower(), f"{one} and {other}: {relation or 'nothing'} where others have {usual}")
            for (one, other), relation in sorted(pairs.items())
            if relation != usual
        ]
    near = {gpu: nearest(matrix, gpu) for gpu in gpus}
    usual, count = _usual([one[0] for one in near.values() if one])
    if usual and count * 2 > len(gpus):
        found += [
            (gpu.lower(), f"{gpu}: nearest network card at {one[0]} where others have {usual}")
            for gpu, one in near.items()
            if one and _NEAR.index(one[0]) > _NEAR.index(usual)
        ]
    return found


def _usual(relations: list[str]) -> tuple[str, int]:
    common = Counter(relations).most_common(1)
    return common[0] if common else ("", 0)
