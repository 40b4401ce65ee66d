"""The reader of answers, fed whole and byte by byte."""

from __future__ import annotations

import unittest

from tidegate._wire import MAX_BODY, MAX_HEAD, ResponseReader
from tidegate.errors import Unavailable

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: 1\r\nx-a: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;x=y\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
TRAILED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\na: b\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN


class Reading(unittest.TestCase):
    def test_answers_are_read_whole_and_byte_by_byte(self) -> None:
        for data in (PLAIN, CHUNKED, TRAILED, CONTINUED):
            with self.subTest(data):
                response = ResponseReader().feed(data)
                assert response is not None
                self.assertEqual((response.status, response.body, response.reusable), (200, b"{}", True))
                reader = ResponseReader()
                parts = [reader.feed(data[at : at + 1]) for at in range(len(data))]
                self.assertTrue(all(part is None for part in parts[:-1]))
                assert parts[-1] is not None
                self.assertEqual(parts[-1].body, b"{}")

    def test_repeated_headers_are_joined(self) -> None:
        response = ResponseReader().feed(PLAIN)
        assert response is not None
        self.assertEqual(response.headers["x-a"], "1, 2")

    def test_connection_with_bytes_left_over_is_not_used_again(self) -> None:
        response = ResponseReader().feed(PLAIN + b"more")
        assert response is not None
        self.assertFalse(response.reusable)

    def test_body_without_a_length_ends_with_the_connection(self) -> None:
        reader = ResponseReader()
        self.assertIsNone(reader.feed(b"HTTP/1.1 200 OK\r\n\r\n{}"))
        response = reader.feed(b"")
        assert response is not None
        self.assertEqual((response.body, response.reusable), (b"{}", False))

    def test_what_is_no_answer_is_an_error(self) -> None:
        strange = [
            [b"220 ready\r\n\r\n"],
            [b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * MAX_HEAD],
            [b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"],
            [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY + 1)],
            [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"],
            [PLAIN[:-1], b""],
            [b""],
        ]
        for parts in strange:
            with self.subTest(parts[0][:40]), self.assertRaises(Unavailable):
                reader = ResponseReader()
                for part in parts:
                    reader.feed(part)
