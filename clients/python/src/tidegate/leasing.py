"""A client that decides on its own, for rules with ``lease_to_clients: true``.

It takes hits ahead and spends them in this process; one message in 50 ms at most carries up to 200 keys. The server counts hits when they
are taken, so all clients together stay within the limit. It asks for everything else. docs/reference/leasing.md has the protocol.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Tuple

from ._calls import Attributes, Call, _read_json, log
from ._purse import ASK, PAID, SOON, Purse, Returned
from .client import Client
from .decision import Decision
from .errors import InvalidRequest, Unauthorized, Unavailable

PROTOCOL = 1
#: The most takes of a message, and the most returns.
MOST_TAKES = 200
#: Characters of a message's attributes, beyond which the rest goes into the next one.
MOST_CHARACTERS = 16_384
#: Returns that wait for a message; more are forgotten, which leaves them spent.
MOST_RETURNS = 10 * MOST_TAKES
#: Seconds between two looks for returns, and keys that nothing uses.
SWEEP = 0.25
#: How long each request is asked for after a server refused to lend: it may be replaced by one that does.
NOT_LENT_FOR = 30.0
_ENTRY = re.compile(r"(takes|returns)\[(\d+)\]")

Key = Tuple[Tuple[str, str], ...]


class Message(NamedTuple):
    """What is taken, and what is given back with the time since which its age counts on."""

    takes: List[Tuple[Key, Purse, int]]
    returns: List[Tuple[Key, Returned, float]]

    def payload(self, domain: str, now: float) -> Dict[str, Any]:
        """As it is sent."""
        takes = [{"attributes": dict(key), "hits": hits} for key, _, hits in self.takes]
        returns = [
            {"attributes": dict(key), "hits": hits, "age_ms": math.ceil((age + now - at) * 1000)}
            for key, (hits, age), at in self.returns
        ]
        return {"protocol": PROTOCOL, "domain": domain, "takes": takes, "returns": returns}

    def without_refused(self, field: Optional[str], now: float) -> List[Message]:
        """What to send in place of a message that was refused as a whole, and so took nothing."""
        if len(self.takes) + len(self.returns) == 1:
            for _, purse, _ in self.takes:
                purse.not_read(now)
            return []
        found = _ENTRY.match(field or "")
        if found:
            entries: List[Any] = getattr(self, found[1])
            number = int(found[2])
            if number < len(entries):
                entry = entries.pop(number)
                if found[1] == "takes":
                    entry[1].not_read(now)
                return [self]
        takes, returns = (len(self.takes) + 1) // 2, len(self.returns) // 2
        return [
            Message(self.takes[:takes], self.returns[:returns]),
            Message(self.takes[takes:], self.returns[returns:]),
        ]


class LeasingClient:
    """Decides in this process where rules lend hits, and asks ``client`` everywhere else. Threads may share one.

    ``source`` of a decision is ``held`` where this process decided. Close it, or what it holds expires after a second.

    :param client: asks the server; its deadline and failure policy hold for requests that are asked for
    :param most_keys: keys that are kept; requests of more are asked for
    """

    def __init__(self, client: Client, *, most_keys: int = 100_000) -> None:
        self._client = client
        self._most_keys = most_keys
        self._lock = threading.Lock()
        self._purses: Dict[Key, Purse] = {}
        self._due: Dict[Key, Purse] = {}
        self._returns: Deque[Tuple[Key, Returned, float]] = deque()
        self._ask_until = float("-inf")
        #: Messages that were sent, and requests that the server was asked for.
        self.messages = 0
        self.asked = 0
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="tidegate-leasing")
        self._thread.start()

    def check(self, attributes: Attributes, *, cost: int = 1) -> Decision:
        """Decides one request, and spends its cost if it passes; the server is asked where nothing is held. ``cost=0`` looks."""
        key: Key = tuple(sorted(attributes.items()))
        with self._lock:
            found, retry_after, due = self._pay(key, cost)
        if due:
            self._wake.set()
        if found == PAID:
            return Decision(allowed=True, status=200, source="held")
        if found != ASK:
            return Decision(allowed=False, status=429, source="held", retry_after=retry_after)
        decision = self._client.check(attributes, cost=cost)
        with self._lock:
            self.asked += 1
            purse = self._purses.get(key)
            if purse is not None and cost == 1 and decision.status == 429:
                purse.refused(time.monotonic(), decision.retry_after)
        return decision

    def close(self) -> None:
        """Returns all hits that it holds. The client stays open; later requests are asked for."""
        with self._lock:
            self._closed = True
        self._wake.set()
        self._thread.join()
        now = time.monotonic()
        with self._lock:
            self._due.clear()
            for key, purse in self._purses.items():
                self._put(key, purse.empty(now), now)
            self._purses.clear()
        self._exchange()

    def __enter__(self) -> LeasingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pay(self, key: Key, cost: int) -> Tuple[str, Optional[float], bool]:
        now = time.monotonic()
        if self._closed or now < self._ask_until:
            return ASK, None, False
        purse = self._purses.get(key)
        if purse is None:
            if len(self._purses) >= self._most_keys:
                return ASK, None, False
            purse = self._purses[key] = Purse(now)
        found, retry_after, wants_more = purse.pay(now, cost)
        due = wants_more and key not in self._due
        if due:
            self._due[key] = purse
        return found, retry_after, due

    def _work(self) -> None:
        swept = time.monotonic()
        while True:
            self._wake.wait(SWEEP)
            self._wake.clear()
            if self._closed:
                return
            now = time.monotonic()
            if now - swept >= SWEEP:
                self._sweep(now)
                swept = now
            self._exchange()
            time.sleep(SOON)

    def _sweep(self, now: float) -> None:
        with self._lock:
            for key, purse in list(self._purses.items()):
                self._put(key, purse.returns(now), now)
                if purse.is_unused(now) and key not in self._due:
                    del self._purses[key]

    def _put(self, key: Key, returned: List[Returned], now: float) -> None:
        room = MOST_RETURNS - len(self._returns)
        self._returns.extend((key, one, now) for one in returned[:room])

    def _exchange(self) -> None:
        """Sends messages until nothing waits for one."""
        while True:
            message = self._message()
            if not message.takes and not message.returns:
                return
            parts = [message]
            while parts:
                part = parts.pop()
                try:
                    self._send(part)
                except (Unavailable, Unauthorized, InvalidRequest) as error:
                    now = time.monotonic()
                    with self._lock:
                        if isinstance(error, InvalidRequest) and not _of_all(error):
                            parts.extend(part.without_refused(error.field, now))
                            continue
                        for lost in [part, *parts]:
                            for _, purse, _ in lost.takes:
                                purse.not_taken()
                        if not isinstance(error, Unavailable):
                            self._ask_until = now + NOT_LENT_FOR
                    log.debug("no hits taken: %s", error)
                    return

    def _message(self) -> Message:
        message, size = Message([], []), 0
        with self._lock:
            now = time.monotonic()
            while self._due and len(message.takes) < MOST_TAKES and size < MOST_CHARACTERS:
                key = next(iter(self._due))
                purse = self._due.pop(key)
                hits = purse.wants(now)
                if hits > 0:
                    message.takes.append((key, purse, hits))
                    size += _size(key)
            while self._returns and len(message.returns) < MOST_TAKES and size < MOST_CHARACTERS:
                message.returns.append(self._returns.popleft())
                size += _size(message.returns[-1][0])
        return message

    def _send(self, message: Message) -> None:
        """Never twice: what a message took whose answer did not come is lost."""
        asked = time.monotonic()
        self.messages += 1
        payload = message.payload(self._client.domain, asked)
        call: Call[Any] = Call("/v1/take", payload, _read_json)
        answers = call.read(self._client._ask(call)).get("answers")
        if not isinstance(answers, list) or len(answers) != len(message.takes):
            raise Unavailable("the server's answer has other takes: is it tidegate?", "protocol")
        with self._lock:
            now = time.monotonic()
            for (_, purse, hits), answer in zip(message.takes, answers):
                purse.taken(asked, now, hits, answer)


def _size(key: Key) -> int:
    # The server names a value that is no text.
    return sum(len(str(name)) + len(str(value)) + 16 for name, value in key)


def _of_all(error: InvalidRequest) -> bool:
    """Whether it refuses every message of this client: an older server, a newer one, or one without the domain."""
    return error.status == 404 or error.field in ("protocol", "domain")
