"""How often callers of a limited service are refused: paced by its headers, and with plain exponential backoff.

Callers share one quota: a real tidegate, a bucket of 50 hits a second with a burst of 50, 8 threads that want 1,000 requests
each way. `python clients/testing/pacing.py` prints the figures of docs/guides/clients.md; `test_pacing` runs fewer, with bounds.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Callable, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python/src"))

from tidegate import Client, Pacer  # noqa: E402
from world import Tidegate  # noqa: E402

RULES = """domain: api
rules:
  - name: shared
    key: [client]
    limits: [{ algorithm: token_bucket, rate: 50/s, burst: 50 }]
"""
THREADS = 8


def run(url: str, name: str, wanted: int, step: Callable[[Client, str], int]) -> int:
    """Prints how many requests were refused before those that are wanted passed, and how long that took."""
    client, left, refused, lock = Client(url, domain="api", deadline=10), [wanted], [0], threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if left[0] == 0:
                    return
                left[0] -= 1
            times = step(client, name)
            with lock:
                refused[0] += times

    begun = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begun
    print(f"{name}: {refused[0]} refusals for {wanted} requests that passed, in {took:.1f} s")
    return refused[0]


def backoff(client: Client, name: str) -> int:
    """Doubling from 100 ms with full jitter: it looks at the status, and at no header."""
    for refusals in range(1000):
        if client.check({"client": name}).allowed:
            return refusals
        time.sleep(random.uniform(0, min(2.0, 0.1 * 2**refusals)))
    raise AssertionError("never passed")


def measure(wanted: int) -> Tuple[int, int]:
    """Refusals with backoff, and paced."""
    pacer = Pacer()

    def paced(client: Client, name: str) -> int:
        for refusals in range(1000):
            pacer.wait()
            decision = client.check({"client": name})
            pacer.heard(decision.status, decision.headers)
            if decision.allowed:
                return refusals
        raise AssertionError("never passed")

    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "rules.yaml"
        rules.write_text(RULES)
        server = Tidegate(Path(folder), ["--rules", str(rules)], ["http", "admin"])
        try:
            url = "http://" + server.addresses["http"]
            return run(url, "backoff", wanted, backoff), run(url, "paced", wanted, paced)
        finally:
            server.stop()


if __name__ == "__main__":
    measure(1000)
