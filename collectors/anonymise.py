"""Takes out of a tool's output what names people, machines and boards, and keeps its form.

A name is replaced by one of the same length and alphabet, the same name by the same one, so that
a parser meets the text as it was. The replacements come from a key that is thrown away. What a
text says by its numbers (temperatures, counters, masks, PCI addresses) is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable

_HEX = "[0-9A-Fa-f]"
_UUID = re.compile(rf"\b{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}\b")
_EMAIL = re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+\b")
_MAC = re.compile(rf"\b(?:{_HEX}{{2}}:){{5}}{_HEX}{{2}}(?:(?::{_HEX}{{2}}){{2}})?\b")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_IPV6 = re.compile(
    rf"(?<![\w:])(?:(?:{_HEX}{{1,4}}:){{4,7}}{_HEX}{{1,4}}"
    rf"|(?:{_HEX}{{1,4}}:){{1,6}}(?::{_HEX}{{1,4}}){{1,6}})(?![\w:])"
)
# A GUID begins with a maker's number; a mask or a counter begins with zeros.
_GUID = re.compile(rf"\b(?:0x)?(?!0{{6}}){_HEX}{{16}}\b")
_HOME = re.compile(r"(?<=/home/)[\w.-]{1,64}|(?<=/users/)[\w.-]{1,64}", re.I)
# Values that follow a key, in XML, JSON, tables and CSV of the tools that we capture.
_KEYED = (
    re.compile(r"(?<=<serial>)[^<]{1,64}(?=</serial>)"),
    re.compile(r"(?<=<pdi>)[^<]{1,64}(?=</pdi>)"),
    re.compile(r"(?<=<board_part_number>)[^<]{1,64}(?=<)"),
    re.compile(r"(?<=<process_name>)[^<]{1,512}(?=<)"),
    re.compile(r"(?<=<chassis_serial_number>)[^<]{1,64}(?=<)"),
    re.compile(r"(?<=<clusterUuid>)[^<]{1,64}(?=<)"),
)
# Names of programs, which their users chose, in lines of the kernel and in nvidia-smi's table.
_PROGRAMS = (
    re.compile(r", name=(?P<value>[^,<\n]{1,64})(?=,)"),
    re.compile(r"[Kk]ill(?:ed)? process \d{1,10},? ?\((?P<value>[^)\n]{1,64})\)"),
    re.compile(r"\btask=(?P<value>[^,\n]{1,64}),pid="),
    re.compile(r"INFO: task (?P<value>[^\n]{1,64}?):\d{1,10} "),
    re.compile(r"stuck for \d{1,9}s! \[(?P<value>[^\]\n]{1,64}):\d{1,10}\]"),
    re.compile(r"\b[Cc]omm(?:[:=] ?| )\"?(?P<value>[^\s\",:]{1,64})"),
    re.compile(r"(?P<value>[^\s\[\]]{1,64})\[\d{1,10}\]:? (?:segfault|general protection|trap )"),
    re.compile(
        r"^\|\s+\d{1,3}(?:\s+\S{1,4}\s+\S{1,4})?\s+\d{1,10}\s+[CGM+]{1,3}\s+"
        r"(?P<value>\S[^|\n]{0,200}?)\s+\S{1,12}\s*\|",
        re.M,
    ),
)
_SERIAL_LINE = re.compile(
    r"(?P<key>\b(?:serial(?:[ _-]?(?:number|num|no))?|board serial|vendor sn|"
    r"asset ?tag|service ?tag)\b"
    r"[\"']?\s*[:=]\s*[\"']?)(?P<value>[A-Za-z0-9][\w.-]{3,63})",
    re.I,
)
# What InfiniBand's tools print in quotes: a node's description, or a GUID with a letter before it.
_QUOTED = re.compile(r"\"(?P<words>[^\"\n]{1,128})\"")
_NODE_ID = re.compile(rf"[HSR]-{_HEX}{{1,16}}\Z")
# Words of a description that name no host.
_DEVICE = re.compile(
    r"(?:mlx|hfi|irdma|ib|qib|bnxt_re|ibp|HCA-)[\w.-]*\Z|Mellanox\Z|Technologies\Z"
)
# Words that stand where a serial would and are none.
_NO_SERIAL = {"none", "unknown", "unspecified", "specified", "supported", "available"}
LOOPBACK = {"127.0.0.1", "0.0.0.0"}  # noqa: S104 - compared, not listened on


class Anonymiser:
    """Replaces names in texts. ``names`` are host, domain and user names to take out."""

    def __init__(self, key: bytes, names: Iterable[str] = ()) -> None:
        self._key = key
        kept = sorted({name for name in names if len(name) > 1}, key=len, reverse=True)
        self._names = (
            re.compile(r"(?<![\w-])(?:" + "|".join(re.escape(name) for name in kept) + r")(?![\w])")
            if kept
            else None
        )
        self.replaced = 0

    def text(self, text: str) -> str:
        """``text`` without names. Line ends and widths stay."""
        for pattern in (_EMAIL, _UUID, _MAC, _IPV6, _GUID, _HOME):
            text = pattern.sub(self._whole, text)
        text = _IPV4.sub(self._ipv4, text)
        for pattern in _KEYED:
            text = pattern.sub(self._whole, text)
        for pattern in _PROGRAMS:
            text = pattern.sub(self._value, text)
        text = _SERIAL_LINE.sub(self._serial, text)
        return self._names.sub(self._whole, text) if self._names else text

    def descriptions(self, text: str) -> str:
        """``text`` of a tool of InfiniBand without the names of hosts and switches."""
        return _QUOTED.sub(self._description, text)

    def name(self, value: str) -> str:
        """Another value in place of one that is known to name something."""
        bare = value.strip().lower()
        return value if not bare or bare in _NO_SERIAL or bare == "n/a" else self._alike(value)

    # ---- inside ----------------------------------------------------------------------------

    def _description(self, found: re.Match[str]) -> str:
        words = found["words"]
        if _NODE_ID.match(words):
            return found[0]
        return '"' + re.sub(r"[^\s:;,()]+", self._word, words) + '"'

    def _word(self, found: re.Match[str]) -> str:
        return found[0] if _DEVICE.match(found[0]) else self._alike(found[0])

    def _whole(self, found: re.Match[str]) -> str:
        return self._alike(found[0])

    def _value(self, found: re.Match[str]) -> str:
        """The match, with its group ``value`` replaced."""
        start, end = (place - found.start() for place in found.span("value"))
        return found[0][:start] + self._alike(found["value"]) + found[0][end:]

    def _ipv4(self, found: re.Match[str]) -> str:
        parts = [int(part) for part in found[0].split(".")]
        if found[0] in LOOPBACK or max(parts) > 255:  # 96.00.99.00 may be a VBIOS version
            return found[0]
        if any(len(part) > 1 and part[0] == "0" for part in found[0].split(".")):
            return found[0]
        digest = self._digest(found[0])
        return f"10.{digest[0]}.{digest[1]}.{digest[2]}"

    def _serial(self, found: re.Match[str]) -> str:
        value = found["value"]
        if value.lower() in _NO_SERIAL or value.upper() in {"N/A", "NA"}:
            return found[0]
        return found["key"] + self._alike(value)

    def _alike(self, word: str) -> str:
        """A word of the same length; digits stay digits, letters letters of their case."""
        self.replaced += 1
        digest = self._digest(word)
        hexadecimal = re.fullmatch(rf"(?:0x)?[{_HEX[1:-1]}:-]+", word) is not None
        made = []
        for place, char in enumerate(word):
            number = digest[place % len(digest)] + place
            made.append(_alike_char(char, number, hexadecimal))
        result = "".join(made)
        return "0x" + result[2:] if word.startswith("0x") else result

    def _digest(self, word: str) -> bytes:
        return hmac.new(self._key, word.encode("utf-8", "replace"), hashlib.sha512).digest()


def _alike_char(char: str, number: int, hexadecimal: bool) -> str:
    if char.isascii() and char.isdigit():
        return str(number % 10)
    letters = 6 if hexadecimal else 26
    if "a" <= char <= "z":
        return chr(ord("a") + number % letters)
    if "A" <= char <= "Z":
        return chr(ord("A") + number % letters)
    return char if not char.isalnum() else "x"
