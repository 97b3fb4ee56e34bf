"""What dcgmi and the host engine print when they fail, and what it means.

Failures come on standard output. The exit code is DCGM's (negative) code & 255, so that a found
fault of a GPU (226: -30, 205: -51) looks like a failure of the tool and is none.
"""

from __future__ import annotations

import re

_WORDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"unable to establish a connection|Unable to connect to host engine", re.I),
        "the DCGM host engine does not answer: is nv-hostengine running?",
    ),
    (
        re.compile(r"No data returned from the hostengine", re.I),
        "the DCGM host engine has no data: its GPUs may all have vanished",
    ),
    (
        re.compile(r"Unable to watch one or more of the requested fields|be running as root", re.I),
        "the DCGM host engine must run as root for these fields",
    ),
    (
        re.compile(r"Health watches not enabled", re.I),
        "health watches are off: enable them with dcgmi health -s a",
    ),
    (
        re.compile(r"diagnostic is already running", re.I),
        "another diagnostic is running",
    ),
    (re.compile(r"^\s*Error\b|runtime_error", re.I), "dcgmi reports a failure"),
)


def failure_words(line: str) -> str:
    """What a line of failure means, in words; empty when it is none."""
    for pattern, words in _WORDS:
        if pattern.search(line):
            return words
    return ""
