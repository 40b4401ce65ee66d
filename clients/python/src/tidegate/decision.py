"""The answer to a check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from .errors import TidegateError

#: The headers of an answer that belong to the caller of the service.
PASSED_ON = (
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "ratelimit-policy",
    "ratelimit",
    "retry-after",
)


@dataclass(frozen=True)
class Decision:
    """Whether a request may pass, and how near its limit is. Times are in seconds."""

    allowed: bool
    #: 200, 429, or 503 where a rule must not decide without its store.
    status: int
    #: Who decided, such as ``store``; ``client_open`` or ``client_closed`` where the failure policy did.
    source: str
    rule: Optional[str] = None
    limit: Optional[int] = None
    remaining: Optional[int] = None
    #: Until the full quota is back.
    reset_after: Optional[float] = None
    #: Until the same request would pass; None if it passed, or never will.
    retry_after: Optional[float] = None
    #: How long to wait before going on, where a leaky bucket says so.
    delay: float = 0.0
    lease: Optional[str] = None
    #: When hits were spent: give it to ``refund``.
    spent: Optional[str] = None
    #: Rate limit headers for the caller, by lower-case name. A batch has none.
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Why the failure policy decided.
    error: Optional[TidegateError] = None
    message: Optional[str] = None

    @classmethod
    def parse(cls, body: Mapping[str, Any], status: int, headers: Mapping[str, str]) -> Decision:
        """From the members of an answer."""

        def seconds(name: str) -> Optional[float]:
            value = body.get(name)
            return None if value is None else value / 1000

        return cls(
            allowed=body["allowed"],
            status=status,
            source=body["source"],
            rule=body.get("rule"),
            limit=body.get("limit"),
            remaining=body.get("remaining"),
            reset_after=seconds("reset_after_ms"),
            retry_after=seconds("retry_after_ms"),
            delay=seconds("delay_ms") or 0.0,
            lease=body.get("lease"),
            spent=body.get("spent"),
            headers={name: headers[name] for name in PASSED_ON if name in headers},
            message=body.get("message"),
        )

    @classmethod
    def of_failure(cls, allowed: bool, error: TidegateError) -> Decision:
        """What the failure policy says."""
        if allowed:
            return cls(allowed=True, status=200, source="client_open", error=error)
        return cls(
            allowed=False,
            status=503,
            source="client_closed",
            retry_after=1.0,
            headers={"retry-after": "1"},
            error=error,
            message="the rate limiter cannot be asked now",
        )
