"""The leasing client: its purse on a clock that the tests move, and all of it against the real server."""

from __future__ import annotations

import itertools
import time
import unittest
from typing import Any, Dict

import tidegate
from tests.servers import Silent, Tidegate
from tidegate._purse import ASK, PAID, REFUSED, Purse
from tidegate.leasing import Message

#: Long enough for a busy machine.
PATIENT = 20.0
names = (f"lent-{number}" for number in itertools.count())


def answer(granted: int, remaining: int, retry_after_ms: Any = None) -> Dict[str, Any]:
    return {"granted": granted, "held_ms": 1000, "remaining": remaining, "reset_after_ms": 60_000, "retry_after_ms": retry_after_ms}


class Purses(unittest.TestCase):
    def filled(self, granted: int, remaining: int) -> Purse:
        """One that was filled at 100, after requests of as many hits."""
        purse = Purse(100.0)
        purse.pay(100.0, 1)
        purse.pay(100.0, granted)
        self.assertEqual(purse.wants(100.0), granted)
        purse.taken(100.0, 100.01, granted, answer(granted, remaining))
        return purse

    def test_first_take_is_what_requests_asked_for_and_of_a_key_seen_once_nothing(self) -> None:
        purse = Purse(100.0)
        self.assertEqual(purse.pay(100.0, 1), (ASK, None, False))
        self.assertEqual(purse.wants(100.0), 0)
        self.assertEqual(purse.pay(100.0, 3), (ASK, None, True))
        self.assertEqual(purse.wants(100.0), 3)

    def test_hits_are_spent_until_their_time_is_over_and_then_returned(self) -> None:
        purse = self.filled(5, 95)
        self.assertEqual(purse.pay(100.9, 2)[0], PAID)
        self.assertEqual((purse.left(100.99), purse.left(101.0)), (3, 0))
        self.assertEqual(purse.pay(101.0, 1)[0], ASK)
        self.assertEqual([(hits, round(age, 3)) for hits, age in purse.returns(101.0)], [(3, 2.0)])
        self.assertEqual(purse.returns(101.0), [])

    def test_hits_of_a_window_that_is_over_are_not_returned(self) -> None:
        purse = Purse(100.0)
        purse.taken(100.0, 100.0, 5, {**answer(5, 95), "reset_after_ms": 2000})
        self.assertEqual(purse.empty(101.0), [])

    def test_take_is_at_most_an_eighth_of_what_remained(self) -> None:
        purse = self.filled(40, 80)
        for _ in range(40):
            self.assertEqual(purse.pay(100.05, 1)[0], PAID)
        self.assertEqual(purse.wants(100.06), 10)

    def test_refusal_is_repeated_for_a_second_at_most(self) -> None:
        purse = Purse(100.0)
        purse.taken(100.0, 100.0, 5, answer(0, 0, retry_after_ms=30_000))
        self.assertEqual(purse.pay(100.5, 1)[:2], (REFUSED, 29.5))
        self.assertEqual(purse.pay(101.0, 1)[0], ASK)

    def test_key_that_is_not_lent_is_asked_for(self) -> None:
        purse = self.filled(5, 95)
        purse.taken(100.0, 100.0, 5, {"ask": "no"})
        self.assertEqual(purse.pay(100.1, 1), (ASK, None, False))
        self.assertEqual(purse.pay(105.0, 1)[0], ASK)

    def test_refused_message_is_sent_again_without_the_entry_that_is_named_or_in_halves(self) -> None:
        keys = [(("user", str(number)),) for number in range(4)]

        def message() -> Message:
            return Message([(key, Purse(100.0), 1) for key in keys], [])

        def sent(field: Any) -> Any:
            return [[key[0][1] for key, _, _ in part.takes] for part in message().without_refused(field, 100.0)]

        self.assertEqual(sent("takes[2].attributes.user"), [["0", "1", "3"]])
        self.assertEqual(sent(None), [["0", "1"], ["2", "3"]])
        alone = message().takes[:1]
        self.assertEqual(Message(alone, []).without_refused(None, 100.0), [])
        self.assertEqual(alone[0][1].pay(101.0, 1), (ASK, None, False))


class Leasing(unittest.TestCase):
    server: Tidegate

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Tidegate()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.stop()

    def client(self, url: str = "", **settings: Any) -> tidegate.LeasingClient:
        asks = tidegate.Client(url or self.server.url, domain="clients", deadline=PATIENT, **settings)
        self.addCleanup(asks.close)
        leasing = tidegate.LeasingClient(asks)
        self.addCleanup(leasing.close)
        return leasing

    def left(self, key: Dict[str, str]) -> Any:
        with tidegate.Client(self.server.url, domain="clients", deadline=PATIENT) as client:
            return client.check(key, cost=0).remaining

    def test_two_clients_decide_in_process_and_admit_the_limit_together(self) -> None:
        clients, key = [self.client(), self.client()], {"lent": next(names)}
        passed, held, until = 0, 0, time.monotonic() + PATIENT
        # Until it is used up, and then as many again.
        refused = 0
        while refused < 500 and time.monotonic() < until:
            for client in clients:
                decision = client.check(key)
                passed += decision.allowed
                held += decision.source == "held"
                refused += not decision.allowed
        # What refills meanwhile is less than one.
        self.assertLessEqual(passed, 501)
        self.assertGreaterEqual(passed, 450)
        asked = sum(client.asked for client in clients)
        self.assertGreater(held, asked, f"{passed} passed, {held} in process, {asked} asked")

    def test_what_is_held_at_the_end_is_returned(self) -> None:
        client, key = self.client(), {"lent": next(names)}
        passed, held, until = 0, 0, time.monotonic() + PATIENT
        while held < 10 and passed < 400 and time.monotonic() < until:
            passed += client.check(key).allowed
            held = sum(purse.left(time.monotonic()) for purse in list(client._purses.values()))
        self.assertGreaterEqual(held, 10)
        full = self.left({"lent": next(names)})
        client.close()
        self.assertLessEqual(abs(full - passed - self.left(key)), 1)
        self.assertEqual(client.check(key).source, "store")

    def test_rule_that_lends_nothing_is_asked_for_each_request(self) -> None:
        client, user = self.client(), {"user": next(names)}
        decisions = [client.check(user) for _ in range(4)]
        self.assertEqual([decision.allowed for decision in decisions], [True, True, True, False])
        self.assertEqual(decisions[0].source, "store")

    def test_key_that_the_server_cannot_read_stops_no_other(self) -> None:
        client, key, long = self.client(), {"lent": next(names)}, {"lent": "x" * 5000}
        source, until = "", time.monotonic() + PATIENT
        while source != "held" and time.monotonic() < until:
            with self.assertRaises(tidegate.InvalidRequest):
                client.check(long)
            source = client.check(key).source
            self.assertEqual(client._ask_until, float("-inf"), "nothing is lent to any key")
        self.assertEqual(source, "held")

    def test_server_that_is_down_leaves_requests_to_the_policy(self) -> None:
        silent = Silent()
        silent.stop()
        client = self.client(silent.url, on_failure="open", on_error=lambda _: None)
        self.assertEqual(client.check({"lent": next(names)}).source, "client_open")

    def test_no_more_keys_are_kept_than_the_bound(self) -> None:
        client = self.client()
        client._most_keys = 2
        for _ in range(5):
            client.check({"lent": next(names)})
        self.assertEqual(len(client._purses), 2)


if __name__ == "__main__":
    unittest.main()
