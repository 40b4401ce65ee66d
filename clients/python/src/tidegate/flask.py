"""An extension for Flask.

>>> RateLimit(app, Client("http://127.0.0.1:8080", domain="api"))
"""

from __future__ import annotations

import time
from typing import Callable, Dict, Mapping, Optional

import flask

from ._middleware import client_ip, refusal, unreadable
from .client import Client
from .errors import InvalidRequest


def request_attributes() -> Dict[str, str]:
    """Method, path and the address of the connection. Behind a proxy, add werkzeug's ``ProxyFix``."""
    request = flask.request
    return {"method": request.method, "path": request.path, "ip": client_ip(request.remote_addr)}


class RateLimit:
    """Asks before each request, sends the headers on, and holds leases until the response is sent."""

    def __init__(
        self,
        app: flask.Flask,
        client: Client,
        attributes: Callable[[], Optional[Mapping[str, str]]] = request_attributes,
    ) -> None:
        """``attributes`` describes ``flask.request`` to the rules; None lets it pass unasked."""
        self.client = client
        self.attributes = attributes
        app.before_request(self._before)
        app.after_request(self._after)
        app.teardown_request(self._teardown)

    def _before(self) -> Optional[flask.Response]:
        asked = self.attributes()
        if asked is None:
            return None
        try:
            decision = self.client.check(asked)
        except InvalidRequest as error:
            answer = unreadable(error)
            if answer is None:
                raise
            return flask.Response(answer[2], answer[0], answer[1])
        if not decision.allowed:
            status, headers, body = refusal(decision)
            return flask.Response(body, status, headers)
        flask.g._tidegate = decision
        time.sleep(decision.delay)
        return None

    def _after(self, response: flask.Response) -> flask.Response:
        decision = flask.g.get("_tidegate")
        if decision is not None:
            for name, value in decision.headers.items():
                response.headers.add(name, value)
            if decision.lease is not None:
                # The body may be a stream that has not begun yet.
                flask.g._tidegate_lease_passed_on = True
                response.call_on_close(lambda: self.client._release_quietly(decision.lease))
        return response

    def _teardown(self, _error: Optional[BaseException]) -> None:
        decision = flask.g.get("_tidegate")
        if decision is not None and decision.lease is not None and not flask.g.get("_tidegate_lease_passed_on"):
            self.client._release_quietly(decision.lease)
