"""What kind of failure a label tells of: a model learns each kind by itself.

A failing link and a failing fan show in different readings. Trees that learn all failures of a
node at once spend themselves on those that give no warning at all.
"""

from __future__ import annotations

from models.features.catalogue import LINK_XIDS, MEMORY_XIDS

# By kind of entity; the last one takes what no other does.
CAUSES: dict[str, tuple[str, ...]] = {
    "gpu": ("memory", "nvlink", "loss"),
    "link": ("link",),
    "memory": ("memory",),
    "chassis": ("fan", "supply"),
    "disk": ("disk",),
    "node": ("link", "memory", "chassis", "disk", "host"),
}
KINDS = tuple(CAUSES)  # the kinds of entity that risk is learned of
_OF_NODE = {
    "link down": "link",
    "fan": "chassis",
    "supply": "chassis",
    "file system read-only": "disk",
}


def cause_of(kind: str, words: str) -> str:
    """The cause, one of CAUSES[kind], of a failure that labels.py describes in ``words``.

    Every failure of a part is one of its node as well, which sees the worst of its parts.

    >>> cause_of("gpu", "xid 48"), cause_of("node", "link down"), cause_of("node", "node down")
    ('memory', 'link', 'host')
    """
    first, _, code = words.partition(" ")
    if kind == "gpu":
        if first != "xid":
            return "loss"
        return "memory" if code in MEMORY_XIDS else "nvlink" if code in LINK_XIDS else "loss"
    if kind != "node":
        return words if words in CAUSES[kind] else CAUSES[kind][-1]
    if first in ("mce", "edac"):
        return "memory"
    return _OF_NODE.get(words, "host")
