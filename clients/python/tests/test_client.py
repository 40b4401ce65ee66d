"""Both clients against the real server: every test runs with each of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
import time
import unittest
from typing import Any, Callable, Optional

import tidegate
from tests.servers import TOKEN, Silent, Tidegate, certificate

#: Long enough for a busy machine.
PATIENT = 20.0
names = (f"caller-{number}" for number in itertools.count())


class Asked:
    """Calls a client of either kind, and waits for what it answers."""

    def __init__(self, client: Any, run: Callable[[Any], Any]) -> None:
        self.client = client
        self._run = run

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **options: self._run(getattr(self.client, name)(*args, **options))


class Sync:
    server: Tidegate

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Tidegate()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.stop()

    def client(self, url: Optional[str] = None, **settings: Any) -> Any:
        settings.setdefault("deadline", PATIENT)
        client = tidegate.Client(url or self.server.url, domain="clients", **settings)
        self.addCleanup(client.close)  # type: ignore[attr-defined]
        return Asked(client, lambda answer: answer)

    def hold(self, client: Any, attributes: Any, then: Callable[[], Any]) -> Any:
        with client.client.lease(attributes):
            return then()


class Asyncio(Sync):
    def client(self, url: Optional[str] = None, **settings: Any) -> Any:
        settings.setdefault("deadline", PATIENT)
        if not hasattr(self, "loop"):
            self.loop = asyncio.new_event_loop()
            self.addCleanup(self.loop.close)  # type: ignore[attr-defined]
        client = tidegate.AsyncClient(url or self.server.url, domain="clients", **settings)
        self.addCleanup(lambda: self.loop.run_until_complete(client.aclose()))  # type: ignore[attr-defined]
        return Asked(client, self.loop.run_until_complete)

    def hold(self, client: Any, attributes: Any, then: Callable[[], Any]) -> Any:
        async def held() -> Any:
            async with client.client.lease(attributes):
                return await asyncio.get_running_loop().run_in_executor(None, then)

        return self.loop.run_until_complete(held())


class Cases:
    """What both must do."""

    def test_limit_passes_three_and_refuses_the_fourth_with_headers(self) -> None:
        client, user = self.client(), {"user": next(names)}
        decisions = [client.check(user) for _ in range(4)]
        self.assertEqual([decision.allowed for decision in decisions], [True, True, True, False])
        first, last = decisions[0], decisions[3]
        self.assertEqual((first.rule, first.limit, first.remaining, first.source), ("per-user", 3, 2, "store"))
        self.assertEqual((first.status, last.status), (200, 429))
        self.assertEqual(first.headers["x-ratelimit-remaining"], "2")
        self.assertNotIn("content-type", first.headers)
        self.assertTrue(3000 < last.retry_after <= 3600, last.retry_after)
        self.assertRegex(last.headers["retry-after"], r"^3[0-6]\d\d$")
        self.assertIsNone(first.retry_after)

    def test_cost_0_looks_without_spending(self) -> None:
        client, user = self.client(), {"user": next(names)}
        self.assertEqual([client.check(user, cost=0).remaining for _ in range(3)], [3, 3, 3])

    def test_no_rule_is_allowed_by_none(self) -> None:
        decision = self.client().check({})
        self.assertEqual((decision.allowed, decision.source, decision.headers), (True, "none", {}))

    def test_batch_answers_in_order(self) -> None:
        client, user = self.client(), {"user": next(names)}
        decisions = client.batch([user, tidegate.Check(user, cost=3), tidegate.Check(user, cost=2)])
        self.assertEqual([(d.allowed, d.status) for d in decisions], [(True, 200), (False, 429), (True, 200)])

    def test_refund_returns_hits_to_the_window_that_was_charged(self) -> None:
        client, user = self.client(), {"user": next(names)}
        spent = client.check(user, cost=3).spent
        client.refund(user, 2, spent=spent)
        self.assertEqual(client.check(user, cost=0).remaining, 2)

    def test_charge_may_leave_a_debt(self) -> None:
        client, model = self.client(), {"model": next(names)}
        client.charge(model, 500)
        self.assertFalse(client.check(model).allowed)

    def test_request_id_is_charged_once(self) -> None:
        client, user = self.client(), {"user": next(names)}
        self.assertEqual([client.check(user, request_id="r-1").remaining for _ in range(3)], [2, 2, 2])

    def test_lease_holds_the_only_slot_and_returns_it(self) -> None:
        client, tenant = self.client(), {"tenant": next(names)}
        # A client of its own, as the asyncio one is in use meanwhile.
        with tidegate.Client(self.server.url, domain="clients", deadline=PATIENT) as other:
            self.assertFalse(self.hold(client, tenant, lambda: other.check(tenant).allowed))
            self.assertTrue(self.hold(client, tenant, lambda: True))

    def test_lease_that_is_refused_raises_with_its_decision(self) -> None:
        client, tenant = self.client(), {"tenant": next(names)}
        held = client.check(tenant).lease
        with self.assertRaises(tidegate.RateLimited) as raised:
            self.hold(client, tenant, lambda: None)
        self.assertEqual(raised.exception.decision.rule, "uploads")
        client.renew(held)
        client.release(held)
        with self.assertRaises(tidegate.LeaseEnded):
            client.renew(held)

    def test_acquire_waits_as_the_server_says(self) -> None:
        client, caller = self.client(), {"refilled": next(names)}
        self.assertTrue(all(client.acquire(caller, wait=PATIENT).allowed for _ in range(3)))

    def test_acquire_gives_up_at_once_if_the_wait_is_too_long(self) -> None:
        client, user = self.client(), {"user": next(names)}
        client.check(user, cost=3)
        with self.assertRaises(tidegate.RateLimited):
            client.acquire(user, wait=60)

    def test_usage_shows_what_is_left(self) -> None:
        client, user = self.client(), {"user": next(names)}
        client.check(user)
        self.assertIn('"remaining": 2', json.dumps(client.usage(user)))

    def test_connection_is_used_again(self) -> None:
        client, user = self.client(), {"user": next(names)}
        client.check(user)
        kept = list(client.client._idle)
        client.check(user)
        self.assertEqual((len(kept), client.client._idle), (1, kept))

    def test_connection_that_the_server_closed_is_not_used(self) -> None:
        server = Tidegate()
        client = self.client(server.url)
        client.check({})
        server.stop()
        replaced = Tidegate(f"# {server.url}\n")
        self.addCleanup(replaced.stop)
        client.client.address = tidegate.client._wire.Address.parse(replaced.url)
        self.assertTrue(client.check({}).allowed)

    def test_mistake_names_its_field_whatever_the_policy(self) -> None:
        client = self.client(on_failure="open")
        with self.assertRaises(tidegate.InvalidRequest) as raised:
            client.check({}, domain="nowhere")
        self.assertEqual((raised.exception.status, raised.exception.field), (422, "domain"))
        self.assertIn("clients", str(raised.exception))

    def test_address_that_is_none_is_an_error_at_once(self) -> None:
        for url in ("127.0.0.1:8080", "ftp://x", "http://", "http://x:port", "http://user:secret@x"):
            with self.subTest(url), self.assertRaises(tidegate.ConfigError):
                self.client(url)

    def test_host_that_does_not_exist_is_an_error_within_the_deadline(self) -> None:
        client = self.client("http://no-such-host.invalid:8080", deadline=1.0)
        self.assert_in_time(client, 1.0, "unreachable", "timeout")

    def test_server_that_is_down_is_an_error(self) -> None:
        silent = Silent()
        silent.stop()
        self.assert_unavailable(self.client(silent.url), "unreachable")

    def test_server_that_never_answers_is_an_error_within_the_deadline(self) -> None:
        silent = Silent()
        self.addCleanup(silent.stop)
        self.assert_in_time(self.client(silent.url, deadline=0.3), 0.3, "timeout")

    def test_server_that_dribbles_is_an_error_within_the_deadline(self) -> None:
        silent = Silent(b"HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n" + b" " * 9000)
        self.addCleanup(silent.stop)
        self.assert_in_time(self.client(silent.url, deadline=0.3), 0.3, "timeout")

    def test_something_else_that_speaks_is_an_error(self) -> None:
        silent = Silent(b"220 mail.example ready\r\n\r\n")
        self.addCleanup(silent.stop)
        self.assert_unavailable(self.client(silent.url), "protocol")

    def test_policy_decides_where_no_server_answers(self) -> None:
        silent = Silent()
        silent.stop()
        errors: list[Exception] = []
        settings = {"on_error": errors.append}
        passed = self.client(silent.url, on_failure="open", **settings).check({"user": "x"})
        refused = self.client(silent.url, on_failure="closed", **settings).check({"user": "x"})
        self.assertEqual((passed.allowed, passed.source), (True, "client_open"))
        self.assertEqual((refused.allowed, refused.source, refused.status), (False, "client_closed", 503))
        self.assertEqual(len(errors), 2)

    def test_retries_carry_one_request_id(self) -> None:
        silent = Silent()
        self.addCleanup(silent.stop)
        client = self.client(silent.url, deadline=1.0, retries=2)
        with self.assertRaises(tidegate.Unavailable):
            client.check({"user": "x"})
        tries = silent.received()
        self.assertEqual((len(tries), len(set(tries))), (3, 1))
        self.assertIn(b'"request_id":"', tries[0])

    def test_check_without_a_request_id_is_asked_once(self) -> None:
        silent = Silent()
        self.addCleanup(silent.stop)
        with self.assertRaises(tidegate.Unavailable):
            self.client(silent.url, deadline=0.3).check({"user": "x"})
        self.assertEqual(silent.connections, 1)

    def test_token_is_sent_and_a_wrong_one_is_named(self) -> None:
        server = Tidegate(f"access: {{ tokens: ['{TOKEN}'] }}\n")
        self.addCleanup(server.stop)
        self.client(server.url, token=TOKEN).ping()
        for token in (None, "another-token-of-the-tests"):
            with self.subTest(token), self.assertRaisesRegex(tidegate.Unauthorized, "access.tokens"):
                self.client(server.url, token=token).ping()
            self.assertTrue(self.client(server.url, token=token, on_failure="open").check({}).allowed)

    def test_certificate_of_another_is_an_error(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        cert, key = certificate(folder.name, "server")
        another, _ = certificate(folder.name, "another")
        server = Tidegate(f"tls: {{ http: {{ certificate: '{cert}', key: '{key}' }} }}\n", scheme="https")
        self.addCleanup(server.stop)
        self.assertTrue(self.client(server.url, ca_file=cert).check({}).allowed)
        self.assert_unavailable(self.client(server.url, ca_file=another), "tls")
        with self.assertRaises(tidegate.ConfigError):
            self.client(server.url, ca_file=folder.name + "/none.pem")

    def assert_in_time(self, client: Any, deadline: float, *reasons: str) -> None:
        """Within the deadline and half of it again. A machine that stands still for a moment may be late, but not three times."""
        took = []
        for _ in range(3):
            begun = time.monotonic()
            self.assert_unavailable(client, *reasons)
            took.append(time.monotonic() - begun)
            if took[-1] < deadline * 1.5:
                return
        self.fail(f"{took} s, three times in a row")

    def assert_unavailable(self, client: Any, *reasons: str) -> None:
        with self.assertRaises(tidegate.Unavailable) as raised:
            client.check({"user": "x"})
        self.assertIn(raised.exception.reason, reasons, raised.exception)


class SyncCases(Sync, Cases, unittest.TestCase):
    pass


class AsyncioCases(Asyncio, Cases, unittest.TestCase):
    def test_cancelled_check_leaves_no_connection_behind(self) -> None:
        silent = Silent()
        self.addCleanup(silent.stop)
        client = self.client(silent.url)

        async def cancelled() -> None:
            task = asyncio.ensure_future(client.client.check({"user": "x"}))
            await asyncio.sleep(0.05)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        self.loop.run_until_complete(cancelled())
        self.assertEqual(client.client._idle, [])


if __name__ == "__main__":
    unittest.main()
