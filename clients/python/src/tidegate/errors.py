"""What can go wrong, split by what the caller does next. A refusal by a limit is a decision, not an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from .decision import Decision


class TidegateError(Exception):
    """Base of every error of this package."""


class ConfigError(TidegateError, ValueError):
    """A setting is wrong, such as the address. Raised when the client is made."""


class Unavailable(TidegateError):
    """No decision came in time. The failure policy applies.

    ``reason`` is ``unreachable``, ``timeout``, ``tls``, ``protocol`` or ``server``.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Unauthorized(TidegateError):
    """The server refuses the token, or wants one. The failure policy applies."""


class InvalidRequest(TidegateError):
    """The server cannot read the request, or has no such domain. Never hidden by the failure policy."""

    def __init__(self, message: str, status: int, field: Optional[str], hint: Optional[str]) -> None:
        super().__init__(message)
        self.status = status
        self.field = field
        self.hint = hint


class LeaseEnded(TidegateError):
    """The lease is over: released, or older than its time to live."""


class RateLimited(TidegateError):
    """Raised by ``lease`` and ``acquire`` where a limit refuses. ``decision`` says which and until when."""

    def __init__(self, decision: Decision) -> None:
        wait = "" if decision.retry_after is None else f", try again in {decision.retry_after:.3g} s"
        super().__init__(f"refused by {decision.rule or decision.source}{wait}")
        self.decision = decision
