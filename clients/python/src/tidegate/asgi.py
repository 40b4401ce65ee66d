"""Middleware for FastAPI, Starlette and every other ASGI application.

>>> app.add_middleware(RateLimitMiddleware, client=AsyncClient("http://127.0.0.1:8080", domain="api"))
"""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, Dict, Mapping, MutableMapping, Optional

from ._middleware import client_ip, refusal, unreadable
from .aio import AsyncClient
from .decision import Decision
from .errors import InvalidRequest

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


def request_attributes(scope: Scope) -> Dict[str, str]:
    """Method, path and the address of the connection. Behind a proxy, let your server read its headers first
    (``uvicorn --proxy-headers --forwarded-allow-ips``)."""
    client = scope.get("client")
    return {
        "method": scope["method"],
        "path": scope["path"],
        "ip": client_ip(client[0] if client else None),
    }


class RateLimitMiddleware:
    """Asks before each HTTP request, sends the headers on, and holds leases until the response is sent."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        client: AsyncClient,
        attributes: Callable[[Scope], Optional[Mapping[str, str]]] = request_attributes,
    ) -> None:
        """``attributes`` describes a request to the rules; None lets it pass unasked."""
        self.app = app
        self.client = client
        self.attributes = attributes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = self.attributes(scope) if scope["type"] == "http" else None
        if asked is None:
            return await self.app(scope, receive, send)
        try:
            decision = await self.client.check(asked)
        except InvalidRequest as error:
            answer = unreadable(error)
            if answer is None:
                raise
            return await _answer(send, *answer)
        if not decision.allowed:
            return await _answer(send, *refusal(decision))
        try:
            await asyncio.sleep(decision.delay)
            await self.app(scope, receive, _with_headers(decision, send))
        finally:
            if decision.lease is not None:
                await asyncio.shield(self.client._release_quietly(decision.lease))
        return None


def _with_headers(decision: Decision, send: Send) -> Send:
    more = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in decision.headers.items()]

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    encoded.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
