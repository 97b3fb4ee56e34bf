"""Reads the JSON in which Slurm tells of nodes: scontrol's, slurmrestd's and sinfo's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from collectors.sample import Problem
from collectors.slurm.hostlist import valid_name
from collectors.slurm.state import (
    Nodes,
    NodeState,
    dict_of,
    gpu_count,
    int_of,
    list_of,
    names_of,
    read_state,
    text_of,
    time_ns_of,
    words_of,
)


def json_begin(text: str) -> int | None:
    """Where the JSON begins; Slurm's tools may print a warning before it."""
    match = re.search(r"^[ \t\ufeff]*[{\[]", text[:100_000], re.MULTILINE)
    return match.end() - 1 if match else None


def from_json(text: str, problems: list[Problem]) -> Nodes:
    try:
        answer, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as error:
        problems.append(Problem(f"no valid JSON: {error}", text[:200]))
        return {}
    if isinstance(answer, list):
        answer = {"nodes": answer}
    for told in list_of(answer.get("errors")):
        words = _error_words(told)
        if words:
            problems.append(Problem(f"Slurm says: {words}"))
    nodes: Nodes = {}
    if "nodes" not in answer and "sinfo" not in answer:
        problems.append(Problem("no list of nodes in this JSON", text[:200]))
    for record in list_of(answer.get("nodes")):
        keep(nodes, _node(record, problems), problems)
    for record in list_of(answer.get("sinfo")):
        for node in _group(record, problems):
            _keep_group(nodes, node)
    return nodes


def keep(nodes: Nodes, node: NodeState | None, problems: list[Problem]) -> None:
    if node is None:
        return
    if node.name in nodes:
        problems.append(Problem(f"node {node.name} stands twice in one answer"))
    nodes[node.name] = node


def _keep_group(nodes: Nodes, node: NodeState) -> None:
    """sinfo has one record a partition: they are joined; the more certain one stays."""
    old = nodes.get(node.name)
    if old is None:
        nodes[node.name] = node
        return
    partitions = tuple(dict.fromkeys(old.partitions + node.partitions))
    best = node if old.uncertain and not node.uncertain else old
    nodes[node.name] = replace(best, partitions=partitions)


def _error_words(error: Any) -> str:
    if isinstance(error, dict):
        for key in ("error", "description"):
            if isinstance(error.get(key), str) and error[key]:
                return str(error[key])
        return json.dumps(error)[:200]
    return str(error)[:200]


def _node(record: Any, problems: list[Problem]) -> NodeState | None:
    """One record of ``nodes``."""
    if not isinstance(record, dict):
        problems.append(Problem("a node that is no record", str(record)[:200]))
        return None
    name = text_of(record.get("name")) or text_of(record.get("hostname"))
    if not valid_name(name):
        problems.append(Problem("a node without a usable name", name[:200]))
        return None
    state = record.get("state")
    if state is None:
        problems.append(Problem(f"node {name} has no state"))
    base, flags = read_state(
        [*words_of(state), *words_of(record.get("state_flags"))], name, problems
    )
    return NodeState(
        name=name,
        base=base,
        flags=flags,
        reason=text_of(record.get("reason")),
        reason_user=text_of(record.get("reason_set_by_user")),
        reason_time_ns=time_ns_of(record.get("reason_changed_at")),
        partitions=names_of(record.get("partitions")),
        gpus_configured=gpu_count(text_of(record.get("gres"))),
        gpus_allocated=_gpus_used(text_of(record.get("gres_used")), record.get("tres_used")),
        boot_time_ns=time_ns_of(record.get("boot_time")),
        slurmd_start_time_ns=time_ns_of(record.get("slurmd_start_time")),
        comment=text_of(record.get("comment")),
        extra=text_of(record.get("extra")),
        reservation=text_of(record.get("reservation")),
        features=names_of(record.get("active_features", record.get("features"))),
        address=text_of(record.get("address")),
        version=text_of(record.get("version")) or text_of(record.get("slurmd_version")),
        next_state=_next_state(record),
        cpus=int_of(record.get("cpus")),
        cpus_allocated=int_of(record.get("alloc_cpus")),
        weight=int_of(record.get("weight")),
    )


def _group(record: Any, problems: list[Problem]) -> Iterator[NodeState]:
    """The nodes of one ``sinfo`` record.

    sinfo groups nodes whose *compact* state is alike: DOWN+DRAIN and IDLE+DRAIN are both
    "drained" and may share a record, which then shows state and reason of the first. Of the
    others only the compact part is known, and they are marked ``uncertain``.
    """
    if not isinstance(record, dict):
        problems.append(Problem("a sinfo record that is no record", str(record)[:200]))
        return
    names = names_of(dict_of(record.get("nodes")).get("nodes"))
    reason = record.get("reason")
    told = dict_of(reason)
    gres = dict_of(record.get("gres"))
    features = dict_of(record.get("features"))
    partition = text_of(dict_of(record.get("partition")).get("name"))
    for index, name in enumerate(names):
        if not valid_name(name):
            problems.append(Problem("a node without a usable name", name[:200]))
            continue
        base, flags = read_state(words_of(dict_of(record.get("node")).get("state")), name, problems)
        node = NodeState(
            name=name,
            base=base,
            flags=flags,
            reason=text_of(told.get("description")) if told else text_of(reason),
            reason_user=text_of(told.get("user")) or text_of(record.get("reason_set_by_user")),
            reason_time_ns=time_ns_of(told.get("time")),
            partitions=(partition,) if partition else (),
            gpus_configured=gpu_count(text_of(gres.get("total"))),
            gpus_allocated=gpu_count(text_of(gres.get("used"))),
            comment=text_of(record.get("comment")),
            extra=text_of(record.get("extra")),
            reservation=text_of(record.get("reservation")),
            features=names_of(features.get("active")),
        )
        if len(names) == 1:
            yield node
            continue
        if (
            index == 0
            or base not in ("idle", "mixed", "allocated", "down")
            or not flags & {"DRAIN"}
        ):
            yield replace(node, uncertain=index > 0)
            continue
        problems.append(
            Problem(
                f"sinfo shows {name} together with {names[0]}: its own state and reason are "
                "not in this text (scontrol show nodes --json has them)"
            )
        )
        yield replace(
            node,
            base="unknown",
            reason="",
            reason_user="",
            reason_time_ns=0,
            comment="",
            extra="",
            uncertain=True,
        )


def _next_state(record: Mapping[str, Any]) -> str:
    """``RESUME``, ``DOWN`` or empty: what follows after ``scontrol reboot``."""
    words = {word.upper() for word in words_of(record.get("next_state_after_reboot"))}
    words |= {word.upper() for word in words_of(record.get("next_state_after_reboot_flags"))}
    for word in ("RESUME", "DOWN"):
        if word in words:
            return word
    return ""


def _gpus_used(gres_used: str, tres_used: Any) -> int:
    if gres_used:
        return gpu_count(gres_used)
    match = re.search(r"gres/gpu=(\d{1,6})", tres_used) if isinstance(tres_used, str) else None
    return int(match[1]) if match else 0
