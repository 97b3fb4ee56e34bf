"""What ipmitool and FreeIPMI say when they cannot read, in one set of words.

The same fault has many spellings, and one spelling many faults: ipmitool says "Unable to
establish IPMI v2 / RMCP+ session" for a wrong password as for a BMC that is gone. Then the time
tells: a refusal comes at once, silence after seconds (see :func:`session_words`).
"""

from __future__ import annotations

import re

WRONG_PASSWORD = "the BMC refuses the password"  # noqa: S105 - words, not a secret
WRONG_USER = "the BMC does not know the user"
WRONG_LOGIN = "the BMC refuses user or password"
NO_ANSWER = "the BMC does not answer"
NO_CIPHER = "the BMC offers no cipher suite that we know"
ONLY_1_5 = "the BMC speaks IPMI 1.5 only"
NO_PRIVILEGE = "the user has too few rights on the BMC"
NOT_SUPPORTED = "the BMC does not support this command"
NO_SESSION = "no session: wrong user or password, or the BMC does not answer"
HALF_DEAD = "the BMC answered and then fell silent"
BUSY = "the BMC has no session or no time left"
STALE_CACHE = "the sensor list kept of this BMC is out of date"

# An answer that comes within this time is a refusal and no silence.
REFUSAL_SECONDS = 3.0

_WORDS: tuple[tuple[str, str], ...] = (
    (r"rakp 2 hmac is invalid|password invalid|incorrect password", WRONG_PASSWORD),
    (r"unauthorized name|username invalid|invalid user", WRONG_USER),
    (r"ipmi 2\.0 unavailable", f'{ONLY_1_5}: set driver = "LAN" for FreeIPMI, or tool = "auto"'),
    (r"authentication type unavailable|invalid auth\w* algorithm|cipher suite", NO_CIPHER),
    (
        r"privilege level (cannot|insufficient)|insufficient privilege|unauthorized role",
        NO_PRIVILEGE,
    ),
    (r"invalid command|command invalid or unsupported|not supported|parameter not", NOT_SUPPORTED),
    (r"get sdr .* failed|close session command failed|get_record\(\) failed", HALF_DEAD),
    (r"out of date|sdr cache .*(invalid|permission)|sdr_cache", STALE_CACHE),
    (r"bmc busy|node busy|insufficient resources|session(s)? (limit|full)", BUSY),
    (r"timeout|timed out|no response|driver timeout|no route", NO_ANSWER),
    (r"could not open device|no such (device|file)|/dev/ipmi", "there is no IPMI device here"),
    (r"address lookup|name or service not known|hostname", "the BMC's name is not known"),
    (r"sel has no entries", "the SEL is empty"),
)
_COMPILED = tuple((re.compile(pattern), words) for pattern, words in _WORDS)

# A line of output that is no reading but a tool's complaint.
_COMPLAINT = re.compile(
    r"(?i)^(error\b|ipmitool: |ipmi-?\w+: |ipmi_\w+: |unable to|get \w+ .*failed|close session|"
    r"dcmi request failed|sdr cache|> rakp|rakp \d|invalid completion|running get vso|loading iana|"
    r"discovered ipmb|could not|no such|sel has no entries|sensor \".*\" not found|.*timed? ?out)"
)


def words_for(line: str) -> str:
    """Our words for a tool's complaint, empty where we have none."""
    low = line.lower()
    if "unable to establish" in low:
        return NO_SESSION
    for pattern, words in _COMPILED:
        if pattern.search(low):
            return words
    return ""


def complaint(line: str) -> bool:
    """Whether ``line`` is a tool's complaint and no data."""
    return bool(_COMPLAINT.match(line))


def session_words(stderr: str, seconds: float) -> str:
    """Why a session could not be had, told from the text and from how long it took."""
    for line in stderr.splitlines():
        found = words_for(line)
        if found and found != NO_SESSION:
            return found
    if "unable to establish" in stderr.lower():
        return WRONG_LOGIN if seconds < REFUSAL_SECONDS else NO_ANSWER
    return "the BMC could not be read"
