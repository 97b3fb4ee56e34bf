"""Bodies within their bounds: one that comes in pieces, one that is packed."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from aiohttp import StreamReader

from daemon.gate.answers import RefusedError, too_large


async def rest_of(content: StreamReader, cover: Callable[[int], None], limit_bytes: int) -> bytes:
    """A body that is still coming. ``cover`` is told how much there is so far, and may raise."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in content.iter_any():
        size += len(chunk)
        if size > limit_bytes:
            raise too_large(limit_bytes)
        cover(size)
        chunks.append(chunk)
    return b"".join(chunks)


def unpacked(body: bytes, limit_bytes: int) -> bytes:
    """What a gzip body holds, all its members; never unpacks more than ``limit_bytes``."""
    parts: list[bytes] = []
    size = 0
    try:
        while body:
            stream = zlib.decompressobj(wbits=31)
            parts.append(stream.decompress(body, limit_bytes + 1 - size))
            size += len(parts[-1])
            if size > limit_bytes:
                raise too_large(limit_bytes)
            if not stream.eof:
                raise RefusedError(400, "invalid", "gzip: the body is cut off")
            body = stream.unused_data.lstrip(b"\0")
    except zlib.error as error:
        raise RefusedError(400, "invalid", f"gzip: {error}") from error
    return b"".join(parts)
