"""Client for tidegate, a distributed rate limiter.

>>> client = Client("http://127.0.0.1:8080", domain="api")
>>> client.check({"user": "42"}).allowed
True
"""

from ._calls import Check
from .aio import AsyncClient
from .client import Client
from .decision import Decision
from .errors import (
    ConfigError,
    InvalidRequest,
    LeaseEnded,
    RateLimited,
    TidegateError,
    Unauthorized,
    Unavailable,
)
from .leasing import LeasingClient
from .pacing import Pacer, Throttle

__all__ = [
    "AsyncClient",
    "Check",
    "Client",
    "ConfigError",
    "Decision",
    "InvalidRequest",
    "LeaseEnded",
    "LeasingClient",
    "Pacer",
    "RateLimited",
    "Throttle",
    "TidegateError",
    "Unauthorized",
    "Unavailable",
]
__version__ = "0.1.0"
