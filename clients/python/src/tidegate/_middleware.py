"""What the framework modules share."""

from __future__ import annotations

import ipaddress
import json
import math
from typing import Dict, Optional, Tuple

from .decision import Decision
from .errors import InvalidRequest


def client_ip(address: Optional[str]) -> str:
    """An address as tidegate's own front ends count it: of IPv6 the /64, of which one household has billions; IPv4 never as
    IPv6."""
    try:
        parsed = ipaddress.ip_address((address or "").split("%")[0])
    except ValueError:
        return address or "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return str(ipaddress.ip_network((parsed, 64), strict=False))
        return str(parsed.ipv4_mapped)
    return str(parsed)


def refusal(decision: Decision) -> Tuple[int, Dict[str, str], bytes]:
    """Status, headers and body for a caller who may not pass."""
    closed = decision.status == 503
    body = {
        "type": "urn:tidegate:problem:store-unavailable"
        if closed
        else "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "The limit cannot be checked now" if closed else "The quota is exceeded",
        "status": decision.status,
        "error": "store_unavailable" if closed else "rate_limit_exceeded",
        "message": decision.message or "rate limit exceeded",
    }
    headers = {"content-type": "application/problem+json", **decision.headers}
    if "retry-after" not in headers and decision.retry_after is not None:
        headers["retry-after"] = str(math.ceil(decision.retry_after))
    return decision.status, headers, json.dumps(body).encode()


def unreadable(error: InvalidRequest) -> Optional[Tuple[int, Dict[str, str], bytes]]:
    """The answer to a caller whose request has an attribute that cannot be checked, such as a path of 5 KB; None where the
    mistake is the service's own."""
    if not (error.field or "").startswith("attributes"):
        return None
    body = {"title": "The request is not valid", "status": 400, "error": "malformed_request", "message": str(error)}
    return 400, {"content-type": "application/problem+json"}, json.dumps(body).encode()
