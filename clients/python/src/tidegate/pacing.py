"""For callers of a service that is limited: when to send the next request, and whether to send it at all.

Neither class knows an HTTP library: give them the status and headers of each answer.
"""

from __future__ import annotations

import random
import re
import threading
import time
from email.utils import parsedate_to_datetime
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional

_ITEM = re.compile(r'"((?:[^"\\]|\\.)*)"((?:\s*;\s*[a-z*][a-z0-9_.*-]*(?:=(?:"(?:[^"\\]|\\.)*"|:[^:]*:|[^;,"]*))?)*)')


class Policy(NamedTuple):
    """A limit, as ``RateLimit-Policy`` and ``RateLimit`` tell it."""

    name: str
    parameters: Dict[str, int]


def parse_list(value: str) -> List[Policy]:
    """The named items of a ``RateLimit`` or ``RateLimit-Policy`` header, with their integers."""
    items = []
    for name, text in _ITEM.findall(value):
        pairs = (part.strip().partition("=") for part in text.split(";") if "=" in part)
        items.append(Policy(name, {key: int(number) for key, _, number in pairs if number.isdigit()}))
    return items


class Pacer:
    """Spreads requests so that few are refused. Threads may share one; one service and caller each.

    While more than half of a quota is left nothing waits. Below that, requests are as far apart as the quota allows in the
    long run. A refusal is followed by a pause as ``Retry-After`` says, and a little longer at random: clients refused
    together do not come back together.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, random: Callable[[], float] = random.random
    ) -> None:
        self._clock = clock
        self._random = random
        self._lock = threading.Lock()
        #: When the next request may be sent, and how far apart those after it are.
        self._next = float("-inf")
        self._interval = 0.0

    def reserve(self) -> float:
        """Takes the next place in time, and says in how many seconds it is."""
        with self._lock:
            now = self._clock()
            start = max(now, self._next)
            self._next = start + self._interval * (1 + 0.1 * self._random())
            return start - now

    def wait(self) -> None:
        """Sleeps until the next request may be sent. In asyncio: ``await asyncio.sleep(pacer.reserve())``."""
        time.sleep(self.reserve())

    def heard(self, status: int, headers: Mapping[str, str]) -> None:
        """Takes in an answer. Names of headers may be in any case."""
        known = {name.lower(): value for name, value in headers.items()}
        interval = _interval(known)
        retry_after = _retry_after(known.get("retry-after")) if status in (429, 503) else None
        with self._lock:
            if interval is not None:
                self._interval = interval
            now = self._clock()
            if retry_after is not None:
                pause = retry_after + (self._interval or 1.0) * self._random()
                self._next = max(self._next, now + pause)
            elif interval:
                self._next = max(self._next, now + interval)


def _interval(headers: Mapping[str, str]) -> Optional[float]:
    """Seconds between requests that every reported limit bears; None where none is reported."""
    left = {item.name: item.parameters for item in parse_list(headers.get("ratelimit", ""))}
    slowest: Optional[float] = None
    for name, policy in parse_list(headers.get("ratelimit-policy", "")):
        remaining, quota = left.get(name, {}).get("r"), policy.get("q")
        span = policy.get("w") or left.get(name, {}).get("t")
        if remaining is None or not quota or span is None:
            continue
        wanted = 0.0 if remaining * 2 > quota else span / quota
        slowest = wanted if slowest is None else max(slowest, wanted)
    return slowest


def _retry_after(value: Optional[str]) -> Optional[float]:
    if value is None:
        return None
    if value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


class Throttle:
    """Drops requests here that the service would most likely refuse ("Handling Overload" in Google's SRE book).

    A request is dropped with probability ``max(0, (requests - k * accepts) / (requests + 1))``, both counted over the last
    ``window`` seconds. With ``k`` 2, a service that accepts at least half is never throttled.
    """

    def __init__(
        self,
        k: float = 2.0,
        *,
        window: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._k = k
        self._slot = window / SLOTS
        self._clock = clock
        self._random = random
        self._lock = threading.Lock()
        #: Requests and accepts of each slot of time, the newest last.
        self._slots: List[List[int]] = [[0, 0] for _ in range(SLOTS)]
        self._newest = 0

    def allow(self) -> bool:
        """Whether to send a request now. It counts as one either way."""
        with self._lock:
            slot = self._current()
            requests = sum(count for count, _ in self._slots)
            accepts = sum(count for _, count in self._slots)
            slot[0] += 1
            return self._random() >= max(0.0, (requests - self._k * accepts) / (requests + 1))

    def heard(self, accepted: bool) -> None:
        """Takes in whether the service took a request that was sent."""
        if accepted:
            with self._lock:
                self._current()[1] += 1

    def _current(self) -> List[int]:
        now = int(self._clock() / self._slot)
        for _ in range(min(now - self._newest, SLOTS)):
            self._slots.pop(0)
            self._slots.append([0, 0])
        self._newest = max(self._newest, now)
        return self._slots[-1]


SLOTS = 12
