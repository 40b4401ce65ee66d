"""One key's purse of hits that were taken ahead. Pure: it is given the time, and owns no socket. docs/reference/leasing.md has the rules."""

from __future__ import annotations

import math
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

#: Seconds that a purse is filled ahead for.
TERM = 0.2
#: So long before a refusal ends, and after a take that got less than it wanted, the next take may find more.
SOON = 0.05
#: A refusal is repeated for so long at most: hits may have come back.
REPEATED = 1.0
#: How long a key is asked for that a rule does not lend, and one that the server cannot read.
ASKED_FOR = 5.0
NOT_READ_FOR = 30.0
#: How long an unused key is kept.
KEPT_FOR = 5.0
#: Hits reach the server within this time, or are not returned.
TRANSIT = 1.0

#: What a purse says of a request.
PAID, REFUSED, ASK = "paid", "refused", "ask"


class Lot(NamedTuple):
    """Hits of one take. Times count from before the server was asked, so that no clocks are compared."""

    hits: int
    asked: float
    until: float
    #: When the server may have forgotten them: what has refilled is not returned once more.
    forgotten: float


class Returned(NamedTuple):
    """Hits to give back, and how old they are at most when they arrive."""

    hits: int
    age: float


class Purse:
    """What is held for one set of attributes, and what the server last said of it."""

    def __init__(self, now: float) -> None:
        self._lots: List[Lot] = []
        self._began = now
        self._used = now
        #: Hits that requests asked for in this term, and in the last one.
        self._spent = 0
        self._last = 0
        #: Hits of requests that wait for the next take, and the most that one of them needs.
        self._waiting = 0
        self._largest = 0
        #: How often the server was asked: of a key that is seen once it is not known whether it comes again.
        self._asks = 0
        #: What remained after the last take; None before the first.
        self._remaining: Optional[float] = None
        self._taking = False
        self._refused: Optional[Tuple[float, Optional[float]]] = None
        self._ask_until = float("-inf")

    def pay(self, now: float, hits: int) -> Tuple[str, Optional[float], bool]:
        """Pays for a request, or says why not: with when a refused one passes, and whether to send a message soon."""
        self._used = now
        if now < self._ask_until or hits == 0:
            return ASK, None, False
        self._turn(now)
        if self.left(now) >= hits:
            self._spend(now, hits)
            return PAID, None, not self._taking and self._is_due(now)
        if self._refused is not None and now < self._refused[0]:
            until, passes = self._refused
            over_soon = until - now <= SOON
            if over_soon:
                self._wait_for(hits)
            return REFUSED, None if passes is None else max(0.0, passes - now), over_soon and not self._taking
        self._asks += 1
        if self._asks > 1:
            self._wait_for(hits)
        return ASK, None, self._asks > 1 and not self._taking

    def wants(self, now: float) -> int:
        """How many hits to take now; 0 for none."""
        refused = self._refused is not None and self._refused[0] - now > SOON
        if now < self._ask_until or refused or self._taking or not self._is_due(now):
            return 0
        left, waiting, largest = self.left(now), self._waiting, self._largest
        self._waiting = self._largest = 0
        if self._remaining is None:
            hits = max(0, waiting - left)
        else:
            # An eighth, so that a small limit is shared among clients.
            fair = max(1, int(min(self._remaining, 1 << 53) / 8))
            hits = max(min(self._need(now) + waiting - left, fair), largest - left, 0)
        self._taking = hits > 0
        return hits

    def taken(self, asked: float, now: float, wanted: int, answer: Mapping[str, Any]) -> None:
        """The server, asked for ``wanted`` hits at ``asked``, said this."""
        self._taking = False
        if "ask" in answer:
            self._ask_until = now + ASKED_FOR
            return
        granted, held = min(int(answer["granted"]), wanted), answer["held_ms"] / 1000
        remaining, reset, retry = (answer.get(name) for name in ("remaining", "reset_after_ms", "retry_after_ms"))
        # Where no limit counts, nothing bounds the next take.
        self._remaining = math.inf if remaining is None else remaining
        if granted > 0:
            forgotten = asked + max(held, held if reset is None else reset / 1000)
            self._lots.append(Lot(granted, asked, asked + held, forgotten))
        if granted == 0:
            self.refused(now, None if retry is None else retry / 1000)
        else:
            self._refused = (now + SOON, now + SOON) if granted < wanted else None

    def not_taken(self) -> None:
        """Nobody answered."""
        self._taking = False

    def not_read(self, now: float) -> None:
        """The server refuses messages that name this key."""
        self._taking = False
        self._ask_until = now + NOT_READ_FOR

    def refused(self, now: float, retry_after: Optional[float]) -> None:
        """The server, asked for one hit, refused it."""
        repeated = REPEATED if retry_after is None else min(REPEATED, retry_after)
        self._refused = (now + repeated, None if retry_after is None else now + retry_after)

    def returns(self, now: float) -> List[Returned]:
        """Takes out hits whose time is over, and those that the demand, which fell, leaves over."""
        self._turn(now)
        left, need = self.left(now), self._need(now)
        surplus = left - need if left // 2 > need else 0
        out, kept = [], []
        for lot in self._lots:
            over = lot.until <= now
            hits = lot.hits if over else min(lot.hits, surplus)
            surplus -= 0 if over else hits
            out.append(lot._replace(hits=hits))
            if not over and lot.hits > hits:
                kept.append(lot._replace(hits=lot.hits - hits))
        self._lots = kept
        return _known(out, now)

    def empty(self, now: float) -> List[Returned]:
        """Takes out everything."""
        lots, self._lots = self._lots, []
        return _known(lots, now)

    def left(self, now: float) -> int:
        """The hits that may be spent now."""
        return sum(lot.hits for lot in self._lots if now < lot.until)

    def is_unused(self, now: float) -> bool:
        """Whether it can be forgotten."""
        return now - self._used >= KEPT_FOR and not self._lots and not self._taking

    def _spend(self, now: float, hits: int) -> None:
        self._spent += hits
        lots = []
        for lot in self._lots:
            paid = min(lot.hits, hits) if now < lot.until else 0
            hits -= paid
            if lot.hits > paid:
                lots.append(lot._replace(hits=lot.hits - paid))
        self._lots = lots

    def _wait_for(self, hits: int) -> None:
        self._waiting += hits
        self._largest = max(self._largest, hits)

    def _is_due(self, now: float) -> bool:
        return self.left(now) <= self._need(now) / 2

    def _need(self, now: float) -> int:
        """What the next term is likely to need, and a quarter more."""
        elapsed = now - self._began
        # Of the first tenth of a term nothing is concluded.
        so_far = self._spent if elapsed < TERM / 10 else self._spent * TERM / elapsed
        return math.ceil(max(self._last, so_far) * 1.25)

    def _turn(self, now: float) -> None:
        elapsed = now - self._began
        if elapsed >= TERM:
            self._last = 0 if elapsed >= 2 * TERM else self._spent
            self._spent, self._began = 0, now


def _known(lots: List[Lot], now: float) -> List[Returned]:
    """Those of which the server still knows when it hears of them. They may seem older than they are, never younger."""
    arrives = now + TRANSIT
    return [Returned(lot.hits, arrives - lot.asked) for lot in lots if lot.hits > 0 and arrives < lot.forgotten]
