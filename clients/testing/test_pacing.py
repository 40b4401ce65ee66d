"""That pacing is worth it: the claim of docs/guides/clients.md, with fewer requests."""

from __future__ import annotations

import unittest

from pacing import measure


class Pacing(unittest.TestCase):
    def test_paced_callers_are_refused_a_tenth_as_often_as_those_that_back_off(self) -> None:
        # The whole of it again, for a machine that stood still while paced callers were due.
        for _ in range(3):
            backoff, paced = measure(250)
            if backoff >= 50 and paced <= backoff / 10:
                return
        self.fail(f"{paced} refusals paced, {backoff} with backoff")


if __name__ == "__main__":
    unittest.main()
