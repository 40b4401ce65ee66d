"""What each method asks and how its answer is read: shared by the sync and the asyncio client."""

from __future__ import annotations

import json
import logging
import ssl
import time
import uuid
from dataclasses import dataclass
from typing import Any, Callable, Dict, Generic, Iterable, List, Mapping, Optional, TypeVar, Union

from ._wire import Address, Response
from .decision import Decision
from .errors import ConfigError, InvalidRequest, LeaseEnded, TidegateError, Unauthorized, Unavailable

T = TypeVar("T")
Attributes = Mapping[str, str]
#: Values of ``on_failure``.
POLICIES = ("open", "closed", "raise")
#: Seconds between two warnings about failures.
QUIET = 10.0

log = logging.getLogger("tidegate")


@dataclass(frozen=True)
class Check:
    """One check of a batch."""

    attributes: Attributes
    cost: int = 1
    domain: Optional[str] = None
    request_id: Optional[str] = None


@dataclass(frozen=True)
class Call(Generic[T]):
    """A question to the server."""

    path: str
    #: None is a GET.
    payload: Any
    read: Callable[[Response], T]
    #: The answer of the failure policy, given whether it lets pass; None raises.
    fallback: Optional[Callable[[bool, TidegateError], T]] = None
    #: Whether asking twice does no harm.
    repeatable: bool = False


class Calls:
    """Settings, and the calls that they make."""

    def __init__(
        self,
        url: str,
        *,
        domain: str,
        token: Optional[str] = None,
        deadline: float = 0.25,
        on_failure: str = "raise",
        retries: int = 0,
        max_idle: int = 16,
        ssl_context: Optional[ssl.SSLContext] = None,
        ca_file: Optional[str] = None,
        on_error: Optional[Callable[[TidegateError], None]] = None,
    ) -> None:
        self.address = Address.parse(url)
        if on_failure not in POLICIES:
            raise ConfigError(f"on_failure must be one of {', '.join(POLICIES)}, not {on_failure!r}")
        if not deadline > 0:
            raise ConfigError(f"deadline must be above 0 seconds, not {deadline!r}")
        if retries < 0:
            raise ConfigError(f"retries must not be negative, not {retries!r}")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ConfigError("token has characters that a header cannot hold")
        self.domain = domain
        self.deadline = deadline
        self.on_failure = on_failure
        self.retries = retries
        self.max_idle = max_idle
        self.token = token
        self._on_error = on_error or self._warn
        self._warned = float("-inf")
        self.ssl: Optional[ssl.SSLContext] = None
        if self.address.tls:
            try:
                self.ssl = ssl_context or ssl.create_default_context(cafile=ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"ca_file {ca_file}: {error}") from None

    def _warn(self, error: TidegateError) -> None:
        now = time.monotonic()
        if now - self._warned >= QUIET:
            self._warned = now
            log.warning("fails %s: %s", self.on_failure, error)

    def failed(self, call: Call[T], error: TidegateError) -> T:
        """What to answer in place of a decision."""
        if call.fallback is None or self.on_failure == "raise":
            raise error
        self._on_error(error)
        return call.fallback(self.on_failure == "open", error)

    def _id(self, given: Optional[str]) -> Optional[str]:
        return given if given is not None or self.retries == 0 else str(uuid.uuid4())

    def _check_call(
        self, attributes: Attributes, cost: int, domain: Optional[str], request_id: Optional[str]
    ) -> Call[Decision]:
        payload = self._payload(Check(attributes, cost, domain, request_id))
        repeatable = "request_id" in payload or cost == 0
        return Call("/v1/check", payload, _read_decision, Decision.of_failure, repeatable)

    def _payload(self, check: Check) -> Dict[str, Any]:
        payload: Dict[str, Any] = {
            "domain": check.domain or self.domain,
            "attributes": dict(check.attributes),
            "cost": check.cost,
        }
        request_id = self._id(check.request_id)
        if request_id is not None:
            payload["request_id"] = request_id
        return payload

    def _batch_call(self, checks: Iterable[Union[Check, Attributes]]) -> Call[List[Decision]]:
        plain = [check if isinstance(check, Check) else Check(check) for check in checks]
        payloads = [self._payload(check) for check in plain]
        repeatable = all("request_id" in payload for payload in payloads)
        return Call(
            "/v1/check/batch",
            {"checks": payloads},
            _read_batch,
            lambda allowed, error: [Decision.of_failure(allowed, error) for _ in plain],
            repeatable,
        )

    def _refund_call(
        self,
        attributes: Attributes,
        amount: int,
        spent: Optional[str],
        domain: Optional[str],
        request_id: Optional[str],
    ) -> Call[None]:
        payload = {"domain": domain or self.domain, "attributes": dict(attributes), "amount": amount}
        if spent is not None:
            payload["spent"] = spent
        request_id = self._id(request_id)
        if request_id is not None:
            payload["request_id"] = request_id
        # Hits that are not given back stay spent, which is the safe side: neither policy needs to stop the caller.
        return Call("/v1/refund", payload, _read_nothing, lambda *_: None, request_id is not None)

    def _release_call(self, lease: str) -> Call[None]:
        return Call("/v1/release", {"lease": lease}, _read_nothing, lambda *_: None, True)

    def _renew_call(self, lease: str) -> Call[None]:
        return Call("/v1/renew", {"lease": lease}, _read_nothing, lambda *_: None, True)

    def _usage_call(self, attributes: Attributes, domain: Optional[str]) -> Call[Dict[str, Any]]:
        payload = {"domain": domain or self.domain, "attributes": dict(attributes)}
        return Call("/v1/usage", payload, _read_json, None, True)

    def _ping_call(self) -> Call[None]:
        # Not /healthz: that needs no token, so it would not find a wrong one.
        return Call("/openapi.json", None, _read_nothing, None, True)


def _read_json(response: Response) -> Any:
    if response.status in (401, 403):
        raise Unauthorized(f"the server refuses the token ({response.status}): set token to one of access.tokens")
    try:
        body = json.loads(response.body)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Unavailable(f"the server answered {response.status} without JSON: is it tidegate?", "protocol")
    if response.status == 200 or "allowed" in body:
        return body
    detail = body.get("detail") or body.get("message") or f"status {response.status}"
    if response.status == 410:
        raise LeaseEnded(str(detail))
    if response.status >= 500 or response.status in (408, 429):
        raise Unavailable(f"the server answered {response.status}: {detail}", "server")
    hint = body.get("hint")
    text = f"{detail}; {hint}" if hint else str(detail)
    raise InvalidRequest(text, response.status, body.get("field"), hint)


def _read_decision(response: Response) -> Decision:
    return _parsed(_read_json(response), response)


def _parsed(body: Any, response: Response) -> Decision:
    try:
        return Decision.parse(body, response.status, response.headers)
    except (KeyError, TypeError):
        raise Unavailable("the server's answer is no decision: is it tidegate?", "protocol") from None


def _read_batch(response: Response) -> List[Decision]:
    decisions = _read_json(response).get("decisions")
    if not isinstance(decisions, list):
        raise Unavailable("the server's answer has no decisions: is it tidegate?", "protocol")

    def status(body: Any) -> int:
        if isinstance(body, dict) and body.get("error") == "store_unavailable":
            return 503
        return 200 if isinstance(body, dict) and body.get("allowed") else 429

    return [_parsed(body, Response(status(body), {}, b"", False)) for body in decisions]


def _read_nothing(response: Response) -> None:
    _read_json(response)
