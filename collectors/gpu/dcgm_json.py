"""Reads ``dcgmi health -c -j`` and ``dcgmi diag -j``, of DCGM 3 and 4.

Health and diagnostics become events: one a GPU and system that is not well. A health report
says nothing of GPUs that are well; a diagnostic names every test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from collectors.events import CRITICAL, ERROR, INFO, WARNING, event
from collectors.gpu.dcgm_failures import failure_words
from collectors.gpu.findings import Findings, Text
from collectors.sample import Problem, Sample, clip

INPUT_LIMIT = 16 * 1024 * 1024
DEPTH_MOST = 24
ITERATIONS_MOST = 1_000

_RESULTS = {"warn": WARNING, "warning": WARNING, "fail": ERROR, "failure": ERROR, "failed": ERROR}
_HEALTH = {"healthy": INFO, "warning": WARNING, "failure": ERROR, "internal error": WARNING}
# dcgm_errors.h, dcgmErrorSeverity_t: 2 isolate, 6 reset, 3 unknown, 4 triage, 5 config, 1 monitor.
_ISOLATE = {2, 6}


def parse_health(text: Text, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """``dcgmi health -c -j``. Never raises."""
    findings = Findings()
    document = _load(text, findings)
    if document is not None:
        body = document.get("body")
        if not isinstance(body, Mapping):
            findings.problem("no health report of dcgmi in this text")
        else:
            _health(body, node, now_ns, findings)
    return findings.close()


def parse_diag(text: Text, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """``dcgmi diag -j``. Never raises."""
    findings = Findings()
    document = _load(text, findings)
    if document is not None:
        # With --iterations, whole reports stand in a list.
        for one in _list(document.get("iterations"), ITERATIONS_MOST) or [document]:
            report = one.get("DCGM Diagnostic", one.get("DCGM GPU Diagnostic"))
            if not isinstance(report, Mapping):
                findings.problem("no diagnostic of dcgmi in this text")
            else:
                _diag(report, node, now_ns, findings)
        warning = document.get("Warning")
        if isinstance(warning, str):
            findings.problem("dcgmi ended the diagnostic early", warning)
    return findings.close()


def _load(text: Text, findings: Findings) -> Mapping[str, Any] | None:
    """The JSON object in a text that may hold other lines before it; else None and a problem."""
    if len(text) > INPUT_LIMIT:
        findings.problem(f"more than {INPUT_LIMIT} characters: not a report of dcgmi")
        return None
    whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    start = whole.find("{")
    for line in whole[: start if start >= 0 else 4000].splitlines()[:50]:
        words = failure_words(line)
        if words:
            findings.problem(words, line)
    if start < 0:
        if not findings.problems:
            findings.problem("no JSON in this text", whole[:300])
        return None
    try:
        document, _ = json.JSONDecoder().raw_decode(whole, start)
    except (ValueError, RecursionError) as error:
        findings.problem(f"broken JSON: {clip(str(error), 200)}", whole[start : start + 200])
        return None
    if not isinstance(document, Mapping):
        findings.problem("JSON, and no report of dcgmi")
        return None
    return document


# ---- health --------------------------------------------------------------------------------


def _health(body: Mapping[str, Any], node: str, now_ns: int, findings: Findings) -> None:
    overall = _value(body.get("Overall Health"))
    severity = _HEALTH.get(overall.lower())
    if severity is None:
        findings.problem(f"no overall health that is known: {overall!r}")
        return
    told = False
    for group, number, system, health, words in _incidents(body):
        told = True
        gpu = group == "GPU"
        findings.add(
            event(
                node,
                "dcgm_health",
                _code(system),
                now_ns,
                text=f"{'gpu' if gpu else group + ' '}{number}: {system}: {health}: {words}",
                severity=_HEALTH.get(health.lower(), WARNING),
                device=f"gpu{number}" if gpu else "",
            )
        )
    if not told:
        findings.add(
            event(
                node,
                "dcgm_health",
                "overall",
                now_ns,
                text=f"overall health: {overall}",
                severity=severity,
            )
        )


def _incidents(body: Mapping[str, Any]) -> Iterator[tuple[str, int, str, str, str]]:
    """(group, number, system, health, words) of each incident in the tree."""
    for group, tree in body.items():
        if group == "Overall Health":
            continue
        for number, entity in _children(tree):
            if not (number.isascii() and number.isdigit() and len(number) < 6):
                continue
            systems = [
                found for name, errors in _children(entity) for found in _children(errors)
                if name == "Errors"
            ]  # fmt: skip
            if not systems and _value(entity):
                yield group, int(number), "overall", _value(entity), ""
            for system, node in systems:
                yield group, int(number), system, _value(node), _overflow(node)


def _children(node: Any) -> list[tuple[str, Any]]:
    """The named children of a node of the tree, whether under ``children`` or direct."""
    if not isinstance(node, Mapping):
        return []
    inner = node.get("children")
    tree = inner if isinstance(inner, Mapping) else node
    return [
        (str(name), child)
        for name, child in list(tree.items())[:1000]
        if isinstance(child, Mapping) and name not in ("children", "overflow", "value")
    ]


def _value(node: Any) -> str:
    value = node.get("value") if isinstance(node, Mapping) else node
    return clip(value, 100) if isinstance(value, str) else ""


def _overflow(node: Any) -> str:
    """The words of an incident; long ones come in pieces."""
    pieces = node.get("overflow") if isinstance(node, Mapping) else None
    if not isinstance(pieces, list):
        return ""
    words = [_value(piece) for piece in pieces[:50]]
    return clip(" ".join(word for word in words if word), 600)


# ---- diagnostics ---------------------------------------------------------------------------


def _diag(report: Mapping[str, Any], node: str, now_ns: int, findings: Findings) -> None:
    error = report.get("runtime_error")
    if isinstance(error, str):
        words = failure_words(error) or "the diagnostic did not run"
        findings.problem(words, error)
    tests = passed = 0
    for category, name, result in _results(report):
        status = _status(result)
        tests += 1
        passed += status == "pass"
        severity = _RESULTS.get(status)
        if severity is None:
            continue
        number = _gpu(result)
        words, isolate = _warnings(result)
        findings.add(
            event(
                node,
                "dcgm_diag",
                _code(name),
                now_ns,
                text=f"{f'gpu{number}: ' if number is not None else ''}{category}: {name}: "
                f"{status}: {words}",
                severity=CRITICAL if isolate and severity == ERROR else severity,
                device=f"gpu{number}" if number is not None else "",
            )
        )
    if tests:
        findings.add(
            event(
                node,
                "dcgm_diag",
                "summary",
                now_ns,
                text=f"{passed} of {tests} results passed",
                severity=INFO,
            )
        )
    elif not findings.problems:
        findings.problem("a diagnostic without any test")


def _results(report: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(category, test, result) of each result, and of each test as far as it says more."""
    for category in _list(report.get("test_categories")):
        for test in _list(category.get("tests")):
            name = clip(str(test.get("name", "unnamed")), 80)
            results = _list(test.get("results"))
            summary = _summary(test, results)
            for result in [*results, *([] if summary is None else [summary])]:
                yield clip(str(category.get("category", "")), 80), name, result


def _summary(test: Mapping[str, Any], results: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """What DCGM 4 says of a test as a whole: a fault of no GPU stands there alone.

    Its warnings repeat those of the results, which are left out; None where nothing is left.
    """
    summary = test.get("test_summary")
    if not isinstance(summary, Mapping):
        return None
    if not results:
        return {**summary, "entity_group": "None"}
    told = {_said(one) for result in results for one in _list(result.get("warnings"))}
    more = [one for one in _list(summary.get("warnings")) if _said(one) not in told]
    bad = _RESULTS.get(_status(summary))
    worst = max((_RESULTS.get(_status(one), INFO) for one in results), default=INFO)
    if bad is None or (not more and bad <= worst):
        return None
    return {**summary, "entity_group": "None", "warnings": more}


def _said(warning: Mapping[str, Any]) -> str:
    return str(warning.get("warning", warning.get("warnings", "")))


def _status(result: Mapping[str, Any]) -> str:
    return str(result.get("status", "")).strip().lower()


def _list(value: Any, most: int = 2000) -> list[Mapping[str, Any]]:
    items = value[:most] if isinstance(value, list) else []
    return [item for item in items if isinstance(item, Mapping)]


def _gpu(result: Mapping[str, Any]) -> int | None:
    """The GPU of a result: ``gpu_ids`` in DCGM up to 3.2 (a list that names one), ``gpu_id`` in
    3.3, an entity of the group GPU in DCGM 4."""
    number = result.get("gpu_id", result.get("gpu_ids"))
    if number is None and str(result.get("entity_group", "GPU")).upper() == "GPU":
        number = result.get("entity_id")
    if isinstance(number, str) and number.isascii() and number.isdigit() and len(number) < 6:
        return int(number)
    return number if isinstance(number, int) and 0 <= number < 100_000 else None


def _warnings(result: Mapping[str, Any]) -> tuple[str, bool]:
    """The words of a result's warnings, and whether one asks for isolation or reset."""
    found: list[str] = []
    isolate = False
    warnings = result.get("warnings")
    for one in _list(warnings):
        words = one.get("warning", one.get("warnings"))
        if isinstance(words, str):
            found.append(words)
        isolate = isolate or one.get("error_severity") in _ISOLATE
    if isinstance(warnings, str):
        found.append(warnings)
    info = result.get("info")
    if not found:
        infos = info[:50] if isinstance(info, list) else [info]
        found += [one for one in infos if isinstance(one, str)]
    return clip("; ".join(found), 600), isolate


def _code(name: str) -> str:
    """A name as an event code: lower case, no blanks.

    >>> _code("PCIe system")
    'pcie_system'
    """
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:60] or "unknown"
