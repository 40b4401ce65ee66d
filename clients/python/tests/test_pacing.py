"""Pacing, on a clock that the tests move."""

from __future__ import annotations

import unittest

from tidegate import Pacer, Throttle
from tidegate.pacing import parse_list


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Pacing(unittest.TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.pacer = Pacer(clock=self.clock, random=lambda: 0.0)

    def heard(self, remaining: int, status: int = 200, **more: str) -> None:
        headers = {"RateLimit-Policy": '"a";q=10;w=60', "RateLimit": f'"a";r={remaining};t=9', **more}
        self.pacer.heard(status, headers)

    def test_nothing_waits_while_much_is_left(self) -> None:
        self.heard(6)
        self.assertEqual([self.pacer.reserve(), self.pacer.reserve()], [0, 0])

    def test_requests_are_spread_once_half_is_spent(self) -> None:
        self.heard(5)
        self.assertEqual([self.pacer.reserve(), self.pacer.reserve(), self.pacer.reserve()], [6, 12, 18])
        self.clock.now += 18
        self.assertEqual(self.pacer.reserve(), 6)

    def test_refusal_waits_as_long_as_it_says(self) -> None:
        self.heard(0, 429, **{"Retry-After": "30"})
        self.assertEqual(self.pacer.reserve(), 30)

    def test_retry_after_may_be_a_date(self) -> None:
        self.pacer.heard(503, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"})
        self.assertEqual(self.pacer.reserve(), 0)

    def test_jitter_only_adds(self) -> None:
        pacer = Pacer(clock=self.clock, random=lambda: 0.5)
        pacer.heard(429, {"retry-after": "30"})
        self.assertEqual(pacer.reserve(), 30.5)

    def test_slowest_of_several_limits_counts(self) -> None:
        self.pacer.heard(200, {"ratelimit-policy": '"a";q=10;w=60, "b";q=2;w=60', "ratelimit": '"a";r=1;t=9, "b";r=1;t=9'})
        self.assertEqual(self.pacer.reserve(), 30)

    def test_names_may_hold_separators(self) -> None:
        self.assertEqual(parse_list(r'"a,;q=1\"";q=5;pk=:YSw7:;w=6, "b";r=1'), [(r"a,;q=1\"", {"q": 5, "w": 6}), ("b", {"r": 1})])


class Throttling(unittest.TestCase):
    def test_service_that_accepts_half_is_never_throttled(self) -> None:
        throttle = Throttle(clock=Clock(), random=lambda: 0.0)
        for number in range(100):
            self.assertTrue(throttle.allow())
            throttle.heard(number % 2 == 0)

    def test_requests_are_dropped_by_the_formula(self) -> None:
        drawn = [1.0]
        throttle = Throttle(clock=Clock(), random=lambda: drawn[0])
        for number in range(99):
            throttle.allow()
            throttle.heard(number < 9)
        # (99 - 2 * 9) / (99 + 1)
        drawn[0] = 0.80
        self.assertFalse(throttle.allow())
        drawn[0] = 0.82
        self.assertTrue(throttle.allow())

    def test_old_times_are_forgotten(self) -> None:
        clock = Clock()
        throttle = Throttle(window=60, clock=clock, random=lambda: 0.01)
        for _ in range(50):
            throttle.allow()
        self.assertFalse(throttle.allow())
        clock.now += 66
        self.assertTrue(throttle.allow())
