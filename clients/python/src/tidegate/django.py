"""Middleware for Django, under WSGI and ASGI.

Add ``"tidegate.django.RateLimitMiddleware"`` to ``MIDDLEWARE``, and settings::

    TIDEGATE = {"url": "http://127.0.0.1:8080", "domain": "api", "on_failure": "open"}

``attributes`` in it names a function from a request to attributes (or to None: not asked); the rest are settings of
:class:`tidegate.Client`.
"""

from __future__ import annotations

import asyncio
import time
from inspect import iscoroutinefunction
from typing import Any, Awaitable, Callable, Dict, Mapping, Optional, Union

from asgiref.sync import markcoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from ._middleware import client_ip, refusal, unreadable
from .aio import AsyncClient
from .client import Client
from .decision import Decision
from .errors import InvalidRequest, TidegateError


def request_attributes(request: HttpRequest) -> Dict[str, str]:
    """Method, path and the address of the connection. Behind a proxy, name a function of your own that reads its header."""
    return {
        "method": request.method or "",
        "path": request.path,
        "ip": client_ip(request.META.get("REMOTE_ADDR")),
    }


class RateLimitMiddleware:
    """Asks before each request, sends the headers on, and holds leases until the response is sent."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        wanted: Dict[str, Any] = dict(getattr(settings, "TIDEGATE", None) or {})
        named = wanted.pop("attributes", request_attributes)
        self.attributes: Callable[[HttpRequest], Optional[Mapping[str, str]]] = (
            import_string(named) if isinstance(named, str) else named
        )
        if "url" not in wanted or "domain" not in wanted:
            raise ImproperlyConfigured("TIDEGATE in the settings needs at least url and domain")
        try:
            self.client = Client(**wanted)
            self.async_client = AsyncClient(**wanted)
        except (TidegateError, TypeError) as error:
            raise ImproperlyConfigured(f"TIDEGATE in the settings: {error}") from error
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Union[HttpResponseBase, Awaitable[HttpResponseBase]]:
        if iscoroutinefunction(self.get_response):
            return self._async(request)
        asked = self.attributes(request)
        if asked is None:
            return self.get_response(request)
        try:
            decision = self.client.check(asked)
        except InvalidRequest as error:
            return _unreadable(error)
        if not decision.allowed:
            return _refused(decision)
        time.sleep(decision.delay)
        lease = decision.lease
        try:
            response = self.get_response(request)
        except BaseException:
            if lease is not None:
                self.client._release_quietly(lease)
            raise
        return self._passed(decision, response)

    async def _async(self, request: HttpRequest) -> HttpResponseBase:
        asked = self.attributes(request)
        if asked is None:
            return await self.get_response(request)
        try:
            decision = await self.async_client.check(asked)
        except InvalidRequest as error:
            return _unreadable(error)
        if not decision.allowed:
            return _refused(decision)
        await asyncio.sleep(decision.delay)
        try:
            response = await self.get_response(request)
        except BaseException:
            if decision.lease is not None:
                await asyncio.shield(self.async_client._release_quietly(decision.lease))
            raise
        return self._passed(decision, response)

    def _passed(self, decision: Decision, response: HttpResponseBase) -> HttpResponseBase:
        for name, value in decision.headers.items():
            response[name] = value
        lease = decision.lease
        if lease is not None:
            # Django closes a response when it is sent, also a streaming one, and never on the event loop.
            response._resource_closers.append(lambda: self.client._release_quietly(lease))
        return response


def _refused(decision: Decision) -> HttpResponse:
    status, headers, body = refusal(decision)
    return HttpResponse(body, status=status, headers=headers)


def _unreadable(error: InvalidRequest) -> HttpResponse:
    answer = unreadable(error)
    if answer is None:
        raise error
    return HttpResponse(answer[2], status=answer[0], headers=answer[1])
