"""Writes docs/configuration.md from the models themselves, so that it cannot go stale.

    python -m daemon.reference > docs/configuration.md

What a key means is said in the comment above it or in the section's docstring; type, default
and bounds come from the model. A test compares the file with what this prints.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from daemon.config import Config
from daemon.settings import _section_in

INTRO = """# Configuration

One TOML file for the head (`/etc/tocsin/tocsin.toml`), and one for an agent (any name; it needs
`[agent]` only). Every key has a default; unknown keys are refused. `tocsin check` lists every fault
at once, with its line and the key that was probably meant; the services refuse to start with the
same words.

The smallest useful files:

```toml
# /etc/tocsin/tocsin.toml on the head
mode = "shadow"            # watch only; then "approve", then "act"
[slurm]
cluster = "my-cluster"
```

```toml
# /etc/tocsin/agent.toml on a compute node
[agent.uplink]
head_url = "http://head:8086"
token_file = "/etc/tocsin/agent.token"
```

Written by `python -m daemon.reference`; do not edit it by hand.
"""


def page() -> str:
    """The whole page."""
    return INTRO + "".join(_section(Config, ""))


def _section(model: type[BaseModel], path: str) -> Iterator[str]:
    comments = _comments(model)
    title = f"`[{path}]`" if path else "Top level"
    yield f"\n## {title}\n\n{_paragraph(model.__doc__ or '')}\n\n"
    rows = []
    below: list[tuple[str, type[BaseModel]]] = []
    for name, info in model.model_fields.items():
        section = _section_in(info.annotation)
        if section is not None:
            below.append((f"{path}.{name}" if path else name, section))
            continue
        default = info.get_default(call_default_factory=False)
        if info.default_factory is not None:
            default = "(found out)" if name == "node" else {}
        words = info.description or comments.get(name, "")
        bounds = ", ".join(filter(None, map(_bound, info.metadata)))
        kind = _kind(info.annotation)
        rows.append(f"| `{name}` | {kind} | {_value(default)} | {bounds} | {words} |\n")
    if rows:
        yield "| key | type | default | bounds | meaning |\n|---|---|---|---|---|\n"
        yield from rows
    for child, section in below:
        yield from _section(section, child)


def _comments(model: type[BaseModel]) -> dict[str, str]:
    """The comment lines right above each field, or behind it, from the class and its bases."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if owner is BaseModel or not issubclass(owner, BaseModel):
            continue
        above: list[str] = []
        for line in inspect.getsource(owner).splitlines():
            text = line.strip()
            field = re.match(r"([a-z_]+)\s*:\s[^#]*(?:#\s*(.*))?$", text)
            if text.startswith("#"):
                above.append(text.lstrip("# "))
            elif field and field[1] in model.model_fields:
                words = " ".join([*above, field[2] or ""]).strip()
                if words:
                    found[field[1]] = words
                above = []
            elif text:
                above = []
    return found


def _paragraph(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split())


_BOUNDS = (("gt", "> {}"), ("ge", ">= {}"), ("lt", "< {}"), ("le", "<= {}"))


def _bound(one: Any) -> str:
    for name, text in _BOUNDS:
        if hasattr(one, name):
            return text.format(f"{getattr(one, name):g}")
    return ""


def _kind(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{one.value}`" for one in annotation)
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    text = re.sub(r"[\w.]+\.(\w+)", r"\1", text)
    return text.replace("|", "or").replace(" or None", "")


def _value(default: Any) -> str:
    if default is PydanticUndefined or default is None:
        return ""
    if isinstance(default, Enum):
        default = default.value
    if isinstance(default, frozenset | set):
        default = sorted(default)
    if isinstance(default, Path):
        default = str(default)
    return f"`{default!r}`".replace("'", '"')


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
