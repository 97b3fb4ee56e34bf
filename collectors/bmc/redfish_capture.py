"""What one BMC says over Redfish, anonymised, as a fixture: a file for each resource.

Reads only (GET), from the service root along the links, one request at a time. Accounts, sessions
and certificates are left out, since they name people and hold secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from collectors.anonymise import Anonymiser
from collectors.bmc.redfish_http import ROOT, Client, HttpError, session
from collectors.bmc.targets import Secrets, split_address

RESOURCES_LIMIT = 600
SECONDS_LIMIT = 600.0
_LEFT_OUT = ("/Accounts", "/AccountService", "/Sessions", "/SessionService", "/Certificates",
             "/CertificateService", "/Registries", "/JsonSchemas", "/KeyService",
             "/Subscriptions")  # fmt: skip
# Values that name a machine, a place or a person.
_NAMING = frozenset(
    {
        *(
            "SerialNumber",
            "AssetTag",
            "HostName",
            "FQDN",
            "UUID",
            "ServiceTag",
            "ChassisServiceTag",
        ),
        *("ExpressServiceCode", "UserName", "ContactInfo", "PermanentMACAddress", "MACAddress"),
        *("Context", "Destination", "NodeID", "Address", "Gateway", "Rack", "Row", "Building"),
        *("Room", "DomainName", "NQN", "DurableName", "SparePartNumber", "BoardSerialNumber"),
    }
)


def context(ca_file: str, insecure: bool) -> ssl.SSLContext:
    """TLS for one BMC; OSError or ssl.SSLError where ``ca_file`` is none."""
    tls = ssl.create_default_context(cafile=ca_file or None)
    tls.check_hostname = False
    if insecure:
        tls.verify_mode = ssl.CERT_NONE
    return tls


def capture_redfish(
    folder: Path, address: str, secrets: Secrets, tls: ssl.SSLContext, anonymiser: Anonymiser
) -> tuple[int, str]:
    """Writes what ``address`` says under ``folder``; how many resources, and what went wrong."""
    folder.mkdir(parents=True)
    return asyncio.run(_walk(folder, address, secrets, tls, anonymiser))


async def _walk(
    folder: Path, address: str, secrets: Secrets, tls: ssl.SSLContext, anonymiser: Anonymiser
) -> tuple[int, str]:
    host, port = split_address(address)
    name = f"[{host}]" if ":" in host else host
    index: list[dict[str, object]] = []
    end = time.monotonic() + SECONDS_LIMIT
    fault = ""
    async with session() as http:
        client = Client(http, f"https://{name}" + (f":{port}" if port else ""), secrets, tls, 30.0)
        waiting, known = deque([ROOT]), {ROOT}
        try:
            while waiting and len(index) < RESOURCES_LIMIT and time.monotonic() < end:
                uri = waiting.popleft()
                begin = time.monotonic()
                try:
                    body = await client.get(uri)
                except HttpError as error:
                    index.append({"resource": anonymiser.text(uri), "fault": str(error)})
                    if error.kind in ("login", "silent", "tls", "cut") and len(index) < 3:
                        raise
                    continue
                seconds = round(time.monotonic() - begin, 3)
                file = f"{len(index):04d}.json"
                text = json.dumps(_clean(body, anonymiser), indent=1, ensure_ascii=False)
                (folder / file).write_text(anonymiser.text(text) + "\n", encoding="utf-8")
                index.append({"resource": anonymiser.text(uri), "file": file, "seconds": seconds})
                if uri == ROOT:
                    await client.login()
                for one in _links(body):
                    plain = one.partition("#")[0].rstrip("/")
                    if plain not in known and plain.startswith(ROOT) and not _left_out(plain):
                        known.add(plain)
                        waiting.append(plain)
            if waiting:
                fault = f"{len(waiting)} further resources were not read: too many, or too slow"
        except HttpError as error:
            fault = str(error)
        finally:
            with contextlib.suppress(HttpError):
                await client.logout()
    listing = json.dumps(index, indent=1, ensure_ascii=False) + "\n"
    (folder / "resources.json").write_text(listing, encoding="utf-8")
    return sum(1 for one in index if "file" in one), fault


def _left_out(uri: str) -> bool:
    return any(part in uri for part in _LEFT_OUT)


def _links(body: Any) -> Iterator[str]:
    """Every address in an answer, in its order."""
    if isinstance(body, dict):
        for key, value in body.items():
            if key in ("@odata.id", "Members@odata.nextLink") and isinstance(value, str):
                yield value
            elif key != "Actions":
                yield from _links(value)
    elif isinstance(body, list):
        for value in body:
            yield from _links(value)


def _clean(body: Any, anonymiser: Anonymiser) -> Any:
    if isinstance(body, dict):
        return {
            key: anonymiser.name(value)
            if key in _NAMING and isinstance(value, str)
            else _clean(value, anonymiser)
            for key, value in body.items()
        }
    if isinstance(body, list):
        return [_clean(value, anonymiser) for value in body]
    return body
