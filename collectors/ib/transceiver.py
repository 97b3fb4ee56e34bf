"""Reads what ``ethtool -m`` and ``mlxlink -m`` print of a cable's or module's electronics.

A passive copper cable has no sensors: mlxlink then prints 0 with the range ``[0..0]``, or N/A;
ethtool prints no such line. An unused lane receives nothing (0 mW, -40 dBm, -inf): the weakest
lane that receives light is told, and none where no lane does.
"""

from __future__ import annotations

import re

from collectors.ib.text import LINE_LIMIT_CHARACTERS

DARK_WATTS = 1.5e-7  # -40 dBm is the floor of the sensors

_TEMPERATURE = re.compile(
    r"\s*(?:Module temperature\s*:\s*(-?\d{1,3}(?:\.\d{1,4})?) degrees C"
    r"|Temperature \[C\]\s*:\s*(-?\d{1,3}(?:\.\d{1,4})?)\s*(\[.*)?\Z)"
)
_RECEIVED = re.compile(
    r"\s*(?:Rcvr signal avg optical power|Receiver signal (?:average optical power|OMA))"
    r"\s*(?:\(Channel \d{1,2}\))?\s*:\s*(\d{1,4}(?:\.\d{1,6})?) mW"
)
_MLXLINK_RECEIVED = re.compile(
    r"\s*Rx Power Current \[dBm\]\s*:\s*(-?\d[-\d.,]{0,200})\s*(\[.*)?\Z"
)
_NO_RANGE = "[0..0]"


def module_fields(text: str) -> dict[str, float]:
    """``transceiver_temperature_celsius`` and ``receive_power_watts``, as far as told."""
    fields: dict[str, float] = {}
    lanes: list[float] = []
    for line in text.splitlines()[:1000]:
        if len(line) > LINE_LIMIT_CHARACTERS:
            continue
        line = line.rstrip()
        if match := _TEMPERATURE.match(line):
            if match.group(3) != _NO_RANGE:
                celsius = float(match.group(1) or match.group(2))
                if -40 < celsius < 130:
                    fields.setdefault("transceiver_temperature_celsius", celsius)
        elif match := _RECEIVED.match(line):
            lanes.append(float(match.group(1)) / 1000)
        elif (match := _MLXLINK_RECEIVED.match(line)) and match.group(2) != _NO_RANGE:
            lanes.extend(
                10 ** (float(number) / 10) / 1000
                for number in match.group(1).split(",")
                if re.fullmatch(r"-?\d{1,3}(?:\.\d{1,6})?", number)
            )
    lit = [watts for watts in lanes if DARK_WATTS < watts < 1]
    if lit:
        fields["receive_power_watts"] = min(lit)
    return fields
