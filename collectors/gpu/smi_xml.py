"""Reads ``nvidia-smi -q -x``: every schema from 418 (v10) on, and later ones as far as known.

The document is read as a stream: only values that are known are kept, so that memory does not
grow with the text, and a document that was cut off gives what came before the cut. Fields have
moved and been renamed over the years; each of ours names its places from new to old.

Users name their processes, and names may hold tags. So nothing in or behind a GPU's list of
processes tells of that GPU, what hides tags (comments, GPUs inside of something else) is refused,
and a document with more GPUs than it counts is not believed. Of one that is broken within, and of
an answer to ourselves that is not whole, GPUs behind the first process are left out: each is then
to be asked for by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.parsers import expat

from collectors.events import event
from collectors.gpu.fabric import state_of
from collectors.gpu.findings import Text, accepted
from collectors.gpu.smi_places import FABRIC, IDENTITY, REPAIRS, WANTED, Means, values_of
from collectors.gpu.smi_text import SmiText
from collectors.gpu.smi_values import read
from collectors.inventory import Board
from collectors.sample import Problem, Sample, clip, sample

KNOWN_SCHEMAS = range(4, 14)
CHUNK = 65_536
DEPTH_MOST = 32
VALUE_LIMIT_CHARACTERS = 400
GPUS_MOST = 256
WORDS_MOST = 1_024
DOCUMENTS_MOST = 500

# expat's codes for a text that ends too early: no element, unclosed token, partial character.
_CUT_OFF = frozenset({3, 5, 6})

_START = re.compile(rb"<\?xml|<!DOCTYPE|<nvidia_smi_log")


def parse(text: Text, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """Samples and problems of one or more documents. Never raises."""
    return read_xml(text, node, now_ns).close()


def read_xml(text: Text, node: str, now_ns: int, asked: int | None = None) -> SmiText:
    """The same in parts, for the live source.

    ``asked`` tells an answer to ourselves, which is one document: 0 for one about all GPUs, 1 for
    one about a single GPU (``-i``).
    """
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    result = SmiText(node, now_ns)
    found = _START.search(raw)
    start = found.start() if found else len(raw)
    for line in raw[: min(start, CHUNK)].decode("utf-8", "replace").splitlines():
        result.take_failure(line)
    if found is None and not result.failures:
        shown = raw[:400].decode("utf-8", "replace")
        result.findings.problem("no nvidia-smi XML in this text", shown)
    documents = 0
    while start < len(raw):
        following = raw.find(b"<?xml", start + 5) if asked is None else -1
        end = len(raw) if following < 0 else following
        documents += 1
        if documents > DOCUMENTS_MOST:
            result.findings.problem(f"more than {DOCUMENTS_MOST} documents: the rest is left out")
            break
        root = raw.rfind(b"</nvidia_smi_log>", start, end)
        after = end if root < 0 else root + len(b"</nvidia_smi_log>")
        _Document(result, asked).read(raw, start, after)
        for line in raw[after : min(end, after + CHUNK)].decode("utf-8", "replace").splitlines():
            result.take_failure(line)
        start = end
    return result


class _Document:
    """One document while it is read."""

    def __init__(self, result: SmiText, asked: int | None) -> None:
        self._result = result
        self._asked = asked
        self._node = result.node
        self._now_ns = result.now_ns
        self._findings = result.findings
        self._path: list[str] = []
        self._text: list[str] = []
        self._length = 0
        self._gpu: dict[str, str] | None = None
        self._gpus: list[dict[str, str]] = []
        self._system: dict[str, str] = {}
        self._programs = False  # in this GPU, the list of processes has begun
        self._named = False  # a process was named, in whatever GPU
        self._before = 0  # so many GPUs began before any process was named
        self._words: list[str] = []  # of the tool, in the middle of the document
        self._root = ""
        self._deep = 0

    def read(self, raw: bytes, start: int, end: int) -> None:
        """Reads ``raw[start:end]`` and adds what it finds to the findings."""
        parser = expat.ParserCreate("UTF-8")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._entity
        parser.CommentHandler = parser.StartCdataSectionHandler = self._hidden
        parser.ProcessingInstructionHandler = self._hidden
        problem = ""
        within = False  # broken before its end, so not only cut off
        try:
            for at in range(start, end, CHUNK):
                parser.Parse(raw[at : min(end, at + CHUNK)], False)
            parser.Parse(b"", True)
        except expat.ExpatError as error:
            problem = str(error)
            within = error.code not in _CUT_OFF
        except (ValueError, LookupError, _Refused) as error:
            problem = str(error) or type(error).__name__
            within = True
        if self._gpu is not None:  # cut off in the middle: what came before is true
            self._gpus.append(self._gpu)
        if problem:
            self._findings.problem(f"the XML ends early or is broken: {problem}")
        self._finish(broken=bool(problem), within=within)

    # ---- the stream ------------------------------------------------------------------------

    def _doctype(self, name: str, system: str | None, public: str | None, internal: bool) -> None:
        found = re.search(r"_v(\d{1,4})\.dtd", system or "")
        if found and int(found[1]) not in KNOWN_SCHEMAS:
            self._findings.problem(
                f"schema {clip(system or '', 60)} is not one of those known: "
                "what is known in it was read",
                once=True,
            )

    def _entity(self, *_: object) -> None:
        raise _Refused("it declares entities, which nvidia-smi never does")

    def _hidden(self, *_: object) -> None:
        raise _Refused("it holds a comment or the like, which nvidia-smi never prints")

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        if name.lower() == "gpu" and self._path != ["nvidia_smi_log"]:
            raise _Refused("it holds a GPU inside of something else")
        if len(self._path) >= DEPTH_MOST:
            self._deep += 1
            return
        self._root = self._root or name
        self._path.append(name.lower())
        self._text.clear()
        self._length = 0
        if self._path == ["nvidia_smi_log", "gpu", "processes"]:
            self._programs = True
        elif self._path[:3] == ["nvidia_smi_log", "gpu", "processes"]:
            self._named = True
        if self._path == ["nvidia_smi_log", "gpu"]:
            self._programs = False
            self._before += not self._named
            self._gpu = {"id": attributes.get("id", "")[:VALUE_LIMIT_CHARACTERS]}

    def _data(self, data: str) -> None:
        if self._length < VALUE_LIMIT_CHARACTERS:
            self._text.append(data[: VALUE_LIMIT_CHARACTERS - self._length])
            self._length += len(data)

    def _end(self, name: str) -> None:
        if self._deep:
            self._deep -= 1
            return
        text = "".join(self._text).strip()
        self._text.clear()
        self._length = 0
        if self._path[:2] == ["nvidia_smi_log", "gpu"] and self._gpu is not None:
            place = "/".join(self._path[2:])
            if not place:
                self._stray(text)
                if len(self._gpus) < GPUS_MOST:
                    self._gpus.append(self._gpu)
                self._gpu = None
            elif self._programs:
                pass  # users name their processes: nothing in and behind their list is believed
            elif place in WANTED:
                self._gpu.setdefault(place, text)
            elif "GPU is lost" in text:
                self._gpu["lost"] = text
        elif len(self._path) == 2 and self._path[0] == "nvidia_smi_log":
            self._system.setdefault(self._path[1], text)
        self._path.pop()

    def _stray(self, text: str) -> None:
        """Words of the tool in the middle of a document: a GPU that it could not read."""
        if not self._programs and len(self._words) < WORDS_MOST:
            self._words += text.splitlines()

    # ---- what it means ---------------------------------------------------------------------

    def _finish(self, *, broken: bool, within: bool) -> None:
        findings = self._findings
        if self._root and self._root.lower() != "nvidia_smi_log":
            findings.problem(f"not nvidia-smi XML: the root is <{clip(self._root, 60)}>")
            return
        attached = read(self._system.get("attached_gpus", ""), "count").number
        listed = len(self._gpus)
        whole = not broken and listed == (self._asked or attached)
        if self._named and (within or (self._asked is not None and not whole)):
            self._unbelieved()
        elif attached is not None and listed > attached:
            findings.problem(
                f"{attached:.0f} GPUs are attached and {listed} are listed: "
                "nothing of this document is believed"
            )
            return
        for line in self._words:
            self._result.take_failure(line)
        all_listed = broken or attached is None or attached == listed
        for place, gpu in enumerate(self._gpus):
            board = self._board(place, gpu, all_listed)
            self._result.boards[board.index] = board
            self._one(board, gpu)
        driver = self._system.get("driver_version", "")
        if _known(driver):
            self._result.versions["driver"] = driver
        if attached is not None and attached > listed:
            words = f"{attached:.0f} GPUs are attached and {listed} are listed"
            self._result.incomplete = words
            findings.problem(words)
        elif attached is None:
            self._result.incomplete = "the document does not say how many GPUs are attached"
        if broken:
            self._result.incomplete = "the XML ends early or is broken"
        if not self._gpus:
            findings.problem("no GPU in this document")

    def _unbelieved(self) -> None:
        """Names of processes may have brought along what stands behind the first of them."""
        self._gpus = self._gpus[: self._before]
        self._words = []
        words = "its list of GPUs can't be told from names of processes in it"
        self._result.mixed = self._result.incomplete = words
        self._findings.problem(words)

    def _board(self, place: int, gpu: Mapping[str, str], all_listed: bool) -> Board:
        """The index is the place in the list; with ``-i``, the minor number."""
        minor = read(gpu.get("minor_number", ""), "count").number
        index = place if all_listed or minor is None else int(minor)
        answer = {ours: gpu[theirs] for theirs, ours in IDENTITY.items() if _known(gpu.get(theirs))}
        answer.setdefault("bus", gpu["id"])
        return Board.of(index, answer)

    def _one(self, board: Board, gpu: Mapping[str, str]) -> None:
        where = f"gpu{board.index}"
        means = Means()
        values = values_of(gpu, means)
        if FABRIC[0] in gpu:
            state, status = (gpu.get(place, "") for place in FABRIC)
            self._result.fabric[board.index] = state_of(state, status)
        if "lost" in gpu:
            values = {"lost": 1.0}
        for words, names in means.errors.items():
            self._findings.problem(f"{where}: {', '.join(names)}: {words}")
        self._findings.add(
            sample(
                "gpu",
                self._now_ns,
                accepted(values, self._findings, where),
                node=self._node,
                gpu=str(board.index),
                uuid=board.uuid,
            )
        )
        for place, code, severity in REPAIRS:
            if read(gpu.get(place, ""), "flag").number == 1.0:
                words = f"{where} {board.uuid}: {code.replace('_', ' ')}"
                self._findings.add(
                    event(
                        self._node,
                        "repair",
                        code,
                        self._now_ns,
                        text=words,
                        severity=severity,
                        device=board.bus,
                    )
                )


class _Refused(Exception):
    """The document holds what no nvidia-smi prints."""


def _known(text: str | None) -> bool:
    return bool(text) and text not in {"N/A", "[N/A]", "Unknown Error"} and "?" not in (text or "")
