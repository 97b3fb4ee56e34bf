"""What the gateway answers when it does not answer 204: words for v1 and v2 clients at once."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from collectors.lines import LineProblem

# So many refused lines are told with their text; of the others only the numbers.
_TOLD_IN_FULL = 20


class RefusedError(Exception):
    """An answer other than 204."""

    def __init__(
        self, status: int, code: str, message: str, retry_after_seconds: float = 0.0, **more: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_seconds = retry_after_seconds
        self.more = more

    def response(self) -> web.Response:
        """Speaks v2 (code, message) and v1 (error) at once."""
        body = {"code": self.code, "message": str(self), "error": str(self), **self.more}
        # A refused line may hold line breaks, and a header may not.
        plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in str(self)[:500])
        headers = {"X-Influxdb-Error": plain}
        if self.retry_after_seconds > 0:
            headers["Retry-After"] = str(max(1, round(self.retry_after_seconds)))
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Token realm="tocsin"'
        answer = web.json_response(body, status=self.status, headers=headers)
        if self.status == 401:
            answer.force_close()  # who has no token keeps no connection
        return answer


def too_large(limit_bytes: int) -> RefusedError:
    """The body, packed or not, is larger than may be."""
    text = f"the body is over {limit_bytes} bytes; send less at once"
    return RefusedError(413, "request too large", text, maxLength=limit_bytes)


def partial_write(problems: list[LineProblem], kept: int) -> RefusedError:
    """Some lines were refused and ``kept`` samples stored. ``refused`` numbers all bad lines."""
    problems = sorted(problems, key=lambda problem: problem.number)
    first = problems[0]
    what = f"line {first.number}: {first.problem}: '{first.line}'"
    shown = [
        {"line": p.number, "problem": p.problem, "text": p.line} for p in problems[:_TOLD_IN_FULL]
    ]
    return RefusedError(
        400,
        "invalid",
        f"partial write: {what} dropped={len(problems)}",
        line=first.number,
        accepted=kept,
        refused=[problem.number for problem in problems],
        problems=shown,
    )
