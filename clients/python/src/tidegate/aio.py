"""The asyncio client: the same methods, awaited."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Dict, Iterable, List, Optional, Tuple, TypeVar, Union

from . import _wire
from ._calls import Attributes, Call, Calls, Check, log
from .client import as_failure, pause_after
from .decision import Decision
from .errors import LeaseEnded, RateLimited, Unauthorized, Unavailable

T = TypeVar("T")
Connection = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncClient(Calls):
    """Asks a tidegate server over HTTP, on connections that are kept. Settings are those of :class:`tidegate.Client`."""

    def __init__(self, url: str, *, domain: str, **settings: Any) -> None:
        super().__init__(url, domain=domain, **settings)
        self._idle: List[Connection] = []
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._closed = False

    async def check(
        self,
        attributes: Attributes,
        *,
        cost: int = 1,
        domain: Optional[str] = None,
        request_id: Optional[str] = None,
    ) -> Decision:
        """Decides one request, and spends its cost if it passes. ``cost=0`` looks without spending."""
        return await self._run(self._check_call(attributes, cost, domain, request_id))

    async def batch(self, checks: Iterable[Union[Check, Attributes]]) -> List[Decision]:
        """Decides several requests in one call, each on its own."""
        return await self._run(self._batch_call(checks))

    async def charge(self, attributes: Attributes, amount: int, **options: Any) -> Decision:
        """Spends an amount that is known only afterwards; see :meth:`tidegate.Client.charge`."""
        return await self.check(attributes, cost=amount, **options)

    async def refund(
        self,
        attributes: Attributes,
        amount: int = 1,
        *,
        spent: Optional[str] = None,
        domain: Optional[str] = None,
        request_id: Optional[str] = None,
    ) -> None:
        """Gives hits back; with ``spent`` of the decision, into the window that was charged."""
        await self._run(self._refund_call(attributes, amount, spent, domain, request_id))

    async def usage(self, attributes: Attributes, *, domain: Optional[str] = None) -> Dict[str, Any]:
        """What is left under every rule that matches; spends nothing."""
        return await self._run(self._usage_call(attributes, domain))

    async def release(self, lease: str) -> None:
        """Ends a lease. Twice does no harm."""
        await self._run(self._release_call(lease))

    async def renew(self, lease: str) -> None:
        """Gives a lease another time to live; raises LeaseEnded where it is over."""
        await self._run(self._renew_call(lease))

    async def ping(self) -> None:
        """Raises unless the server can be reached, shows the right certificate and takes the token."""
        await self._run(self._ping_call())

    @asynccontextmanager
    async def lease(self, attributes: Attributes, **options: Any) -> AsyncIterator[Decision]:
        """Holds a concurrency slot while the block runs; raises RateLimited where none is free."""
        decision = await self.check(attributes, **options)
        if not decision.allowed:
            raise RateLimited(decision)
        try:
            yield decision
        finally:
            if decision.lease is not None:
                # A cancelled task gives its slot back too.
                await asyncio.shield(self._release_quietly(decision.lease))

    async def _release_quietly(self, lease: str) -> None:
        try:
            await self.release(lease)
        except (Unavailable, Unauthorized, LeaseEnded) as error:
            log.warning("lease not released, it ends with its time to live: %s", error)

    async def acquire(self, attributes: Attributes, *, wait: float, **options: Any) -> Decision:
        """Checks until allowed, waiting as the server says and a little longer, at most ``wait`` seconds in all."""
        until = time.monotonic() + wait
        while True:
            decision = await self.check(attributes, **options)
            if decision.allowed:
                await asyncio.sleep(decision.delay)
                return decision
            pause = pause_after(decision)
            if pause is None or time.monotonic() + pause > until:
                raise RateLimited(decision)
            await asyncio.sleep(pause)

    async def aclose(self) -> None:
        """Closes the kept connections."""
        self._closed = True
        idle, self._idle = self._idle, []
        for _, writer in idle:
            writer.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _run(self, call: Call[T]) -> T:
        try:
            return call.read(await self._ask(call))
        except (Unavailable, Unauthorized) as error:
            return self.failed(call, error)

    async def _ask(self, call: Call[T]) -> _wire.Response:
        data = _wire.request(self.address, call.path, self.token, call.payload)
        until = time.monotonic() + self.deadline
        tries = 1 + (self.retries if call.repeatable else 0)
        while True:
            # Each try gets an equal part of what is left, or the first would use it all.
            part = (until - time.monotonic()) / tries
            try:
                return await self._in_time(data, part)
            except Unavailable:
                tries -= 1
                if tries == 0 or time.monotonic() >= until:
                    raise
                await asyncio.sleep(min(random.uniform(0, 0.02), max(0.0, until - time.monotonic())))

    async def _in_time(self, data: bytes, part: float) -> _wire.Response:
        try:
            return await asyncio.wait_for(self._exchange(data), part)
        except asyncio.TimeoutError as error:
            raise Unavailable(f"{self.address} did not answer within {self.deadline:g} s", "timeout") from error
        except OSError as error:
            raise as_failure(error, self.address, self.deadline) from error
        except UnicodeError as error:
            raise Unavailable(f"cannot reach {self.address}: not a host name: {error}", "unreachable") from error

    async def _exchange(self, data: bytes) -> _wire.Response:
        connection = self._kept()
        if connection is None:
            host = self.address.host if self.ssl else None
            connection = await asyncio.open_connection(
                self.address.host, self.address.port, ssl=self.ssl, server_hostname=host
            )
        reader, writer = connection
        try:
            writer.write(data)
            await writer.drain()
            answer, response = _wire.ResponseReader(), None
            while response is None:
                response = answer.feed(await reader.read(65536))
        except BaseException:
            writer.close()
            raise
        if response.reusable and not self._closed and len(self._idle) < self.max_idle:
            self._idle.append(connection)
        else:
            writer.close()
        return response

    def _kept(self) -> Optional[Connection]:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Connections belong to the loop that made them.
            self._idle, self._loop = [], loop
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return None
