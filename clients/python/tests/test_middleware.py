"""The middleware in real frameworks, behind real servers, asking the real tidegate.

A framework that is not installed is skipped; set TIDEGATE_ALL_FRAMEWORKS to make that a failure.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import itertools
import os
import socket
import threading
import unittest
from typing import Any, Callable, Dict, Optional
from wsgiref.simple_server import WSGIRequestHandler, make_server

import tidegate
from tests.servers import Silent, Tidegate
from tidegate._middleware import client_ip

names = (f"web-{number}" for number in itertools.count())


def needs(*modules: str) -> Any:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if os.environ.get("TIDEGATE_ALL_FRAMEWORKS"):
        assert not missing, f"{', '.join(missing)} not installed"
    return unittest.skipIf(missing, f"without {', '.join(missing)}")


class Wsgi:
    """Serves a WSGI application on a free port."""

    def __init__(self, app: Any) -> None:
        class Quiet(WSGIRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

        self._server = make_server("127.0.0.1", 0, app, handler_class=Quiet)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Asgi:
    """Serves an ASGI application with uvicorn on a free port."""

    def __init__(self, app: Any) -> None:
        import uvicorn

        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        self._thread = threading.Thread(target=lambda: self._server.run([listener]), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()


class Cases:
    """What each framework must do. ``serve`` gives a running application that streams ``hello`` for every path, counts by
    the header ``x-user``, and holds a slot of the tenant in ``x-tenant``."""

    limiter: Tidegate
    serve: Callable[..., Any]

    @classmethod
    def setUpClass(cls) -> None:
        cls.limiter = Tidegate()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.limiter.stop()

    def started(self, **settings: Any) -> Any:
        settings = {"url": self.limiter.url, "domain": "clients", "deadline": 20.0, **settings}
        server = self.serve(settings)
        self.addCleanup(server.stop)  # type: ignore[attr-defined]
        return server

    def get(self, server: Any, path: str = "/", headers: Optional[Dict[str, str]] = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        self.addCleanup(connection.close)  # type: ignore[attr-defined]
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        response.body = response.read()  # type: ignore[attr-defined]
        return response

    def test_three_pass_with_headers_and_the_fourth_is_refused(self) -> None:
        server, user = self.started(), {"x-user": next(names)}
        answers = [self.get(server, headers=user) for _ in range(4)]
        self.assertEqual([answer.status for answer in answers], [200, 200, 200, 429])
        self.assertEqual(answers[0].body, b"hello")
        self.assertEqual(answers[0].getheader("x-ratelimit-remaining"), "2")
        self.assertRegex(answers[3].getheader("retry-after") or "", r"^3[0-6]\d\d$")
        self.assertEqual(answers[3].getheader("content-type"), "application/problem+json")
        self.assertIn(b"rate_limit_exceeded", answers[3].body)

    def test_lease_is_returned_after_the_response(self) -> None:
        server, tenant = self.started(), next(names)
        with tidegate.Client(self.limiter.url, domain="clients", deadline=20) as client:
            for _ in range(3):
                self.assertEqual(self.get(server, headers={"x-tenant": tenant}).status, 200)
                # Released right after the last byte.
                client.release(client.acquire_free({"tenant": tenant}))  # type: ignore[attr-defined]

    def test_failure_policy_decides(self) -> None:
        gone = Silent()
        gone.stop()
        for policy, status in (("open", 200), ("closed", 503)):
            with self.subTest(policy):
                server = self.started(url=gone.url, on_failure=policy)
                self.assertEqual(self.get(server, headers={"x-user": "x"}).status, status)

    def test_path_that_cannot_be_checked_is_a_bad_request(self) -> None:
        answer = self.get(self.started(), "/" + "x" * 5000, {"x-user": "x"})
        self.assertEqual(answer.status, 400)

    def test_method_path_and_address_are_sent_by_default(self) -> None:
        server = self.started(default=True)
        statuses = [self.get(server, "/by-ip/x").status for _ in range(3)]
        self.assertEqual(statuses, [200, 200, 429])


def acquire_free(client: tidegate.Client, attributes: Dict[str, str]) -> str:
    """A free slot, which may take a moment to become so."""
    for _ in range(2000):
        decision = client.check(attributes)
        if decision.lease is not None:
            return decision.lease
        threading.Event().wait(0.01)
    raise AssertionError("the slot was never returned")


tidegate.Client.acquire_free = acquire_free  # type: ignore[attr-defined]


def described(header: Callable[[str], Optional[str]], path: str) -> Dict[str, str]:
    found = {"user": header("x-user"), "tenant": header("x-tenant"), "path": path}
    return {name: value for name, value in found.items() if value is not None}


@needs("flask")
class Flask(Cases, unittest.TestCase):
    @staticmethod
    def serve(settings: Dict[str, Any]) -> Wsgi:
        import flask

        from tidegate.flask import RateLimit, request_attributes

        app = flask.Flask("test")
        default = settings.pop("default", False)
        attributes = request_attributes if default else lambda: described(flask.request.headers.get, flask.request.path)
        RateLimit(app, tidegate.Client(**settings), attributes)
        app.add_url_rule("/", "root", lambda: flask.Response(iter(["hel", "lo"])))
        app.add_url_rule("/<path:_>", "any", lambda _: flask.Response(iter(["hel", "lo"])))
        return Wsgi(app)


@needs("starlette", "uvicorn")
class Starlette(Cases, unittest.TestCase):
    @staticmethod
    def serve(settings: Dict[str, Any]) -> Asgi:
        from starlette.applications import Starlette
        from starlette.responses import StreamingResponse
        from starlette.routing import Route

        async def hello(_: Any) -> StreamingResponse:
            return StreamingResponse(iter(["hel", "lo"]))

        return Asgi(limited(Starlette(routes=[Route("/{path:path}", hello)]), settings))


@needs("fastapi", "uvicorn")
class FastApi(Cases, unittest.TestCase):
    @staticmethod
    def serve(settings: Dict[str, Any]) -> Asgi:
        from fastapi import FastAPI
        from starlette.responses import StreamingResponse

        app = FastAPI()

        @app.get("/{path:path}")
        def hello(path: str) -> StreamingResponse:
            return StreamingResponse(iter(["hel", "lo"]))

        return Asgi(limited(app, settings))


def limited(app: Any, settings: Dict[str, Any]) -> Any:
    from tidegate.asgi import RateLimitMiddleware, request_attributes

    def by_headers(scope: Any) -> Dict[str, str]:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        return described(headers.get, scope["path"])

    attributes = request_attributes if settings.pop("default", False) else by_headers
    app.add_middleware(RateLimitMiddleware, client=tidegate.AsyncClient(**settings), attributes=attributes)
    return app


def django_handler(settings: Dict[str, Any], asynchronous: bool) -> Any:
    import django
    from django.conf import settings as django_settings
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler
    from django.test.utils import override_settings

    if not django_settings.configured:
        django_settings.configure(ROOT_URLCONF="tests.django_urls", ALLOWED_HOSTS=["*"], SECRET_KEY="x", LOGGING_CONFIG=None)
        django.setup()
    if not settings.pop("default", False):
        settings["attributes"] = "tests.django_urls.attributes"
    middleware = ["tidegate.django.RateLimitMiddleware"]
    # The handler reads settings when it is made.
    with override_settings(TIDEGATE=settings, MIDDLEWARE=middleware):
        return ASGIHandler() if asynchronous else WSGIHandler()


@needs("django")
class Django(Cases, unittest.TestCase):
    @staticmethod
    def serve(settings: Dict[str, Any]) -> Wsgi:
        return Wsgi(django_handler(settings, asynchronous=False))


@needs("django", "uvicorn")
class DjangoAsync(Cases, unittest.TestCase):
    @staticmethod
    def serve(settings: Dict[str, Any]) -> Asgi:
        return Asgi(django_handler(settings, asynchronous=True))


class Addresses(unittest.TestCase):
    def test_ipv6_is_counted_by_network_and_ipv4_never_as_ipv6(self) -> None:
        counted = {
            "203.0.113.7": "203.0.113.7",
            "::ffff:203.0.113.7": "203.0.113.7",
            "2001:db8:1:2:3::4": "2001:db8:1:2::/64",
            "fe80::1%eth0": "fe80::/64",
        }
        self.assertEqual({address: client_ip(address) for address in counted}, counted)
