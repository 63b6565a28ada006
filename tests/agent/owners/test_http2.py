"""HTTP/2 for one call: forms that grpcio, the server of the other tests, does not send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_agent.owners.http2 import Answer, BadFrame, read_headers, read_huffman, request

DATA, HEADERS, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
OK = b"\x88"
"""`:status: 200`, the eighth entry of the static table."""
TRAILERS = b"\x40\x88\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x01\x30"
"""`grpc-status: 0` as Go sends it: the name in Huffman's code, the value as it is."""


def frame(kind, content=b"", flags=0, stream=1):
    """A frame of a server."""
    head = len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + content


HELLO = frame(SETTINGS, stream=0)


def answer_of(*frames):
    """What a server's frames say, after its settings."""
    answer = Answer()
    answer.receive(HELLO + b"".join(frames))
    return answer


@pytest.mark.parametrize(
    ("coded", "text"),
    [
        ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
        ("a8eb10649cbf", "no-cache"),
        ("25a849e95bb8e8b4bf", "custom-value"),
        ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
        (
            "94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
            "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
        ),
    ],
)
def test_the_examples_of_the_standard_are_read(coded, text):
    """RFC 7541, appendix C.4 and C.6."""
    assert read_huffman(bytes.fromhex(coded)) == text


def test_a_tab_in_a_header_that_nobody_reads_fails_no_call():
    """Servers send such values in Huffman code, too: `aaa`, a tab, and a bit that fills the byte."""
    bits = "00011" * 3 + f"{0xFFFFEA:024b}" + "1"
    coded = int(bits, 2).to_bytes(len(bits) // 8)
    assert read_huffman(coded) == "aaa\N{REPLACEMENT CHARACTER}"


def test_go_servers_trailers_are_read():
    """The name is in Huffman's code, and added to a table that this side does not have."""
    assert list(read_headers(TRAILERS)) == [("grpc-status", "0")]


def test_headers_that_nobody_reads_are_skipped():
    """A name from the static table, an entry of it, a table that shrinks, a field never indexed."""
    date = b"\x61\x03now"  # a name from the table
    block = b"\x20" + OK + date + b"\x82" + b"\x10\x03abc\x03def"
    assert list(read_headers(block)) == [(":status", "200"), ("abc", "def")]


@pytest.mark.parametrize(
    "block",
    [b"\x80", b"\xbe", b"\xff\xff\xff\xff\xff\xff", b"\x40", b"\x40\x05ab", b"\x7f\x80", b"\x41"],
)
def test_headers_that_are_none_are_refused(block):
    """Entry 0, one of the table that this side refused, numbers and texts without an end."""
    with pytest.raises(BadFrame):
        list(read_headers(block))


@given(st.binary(max_size=200))
def test_random_headers_are_read_or_refused(block):
    """Nothing but our own error comes out."""
    try:
        read = list(read_headers(block))
    except BadFrame:
        return
    assert len(read) <= len(block)


def test_an_answer_comes_whole_in_every_form_of_its_frames():
    """Padding, a priority, headers in two frames, settings that come again and frames of kinds that
    nobody knows.
    """
    answer = answer_of(
        frame(WINDOW, b"\0\0\1\0", stream=0),
        frame(HEADERS, b"\2" + bytes(5) + b"\0\0", 0x8 | 0x20),
        frame(CONTINUATION, OK, 0x4),
        frame(DATA, b"\3bytes\0\0\0", 0x8),
        frame(0xB, b"news"),
        frame(DATA, b" more"),
        frame(HEADERS, TRAILERS, 0x4 | 0x1),
    )
    assert (answer.headers, bytes(answer.body)) == (
        {":status": "200", "grpc-status": "0"},
        b"bytes more",
    )
    assert answer.ended


def test_every_cut_of_the_bytes_gives_the_same_answer():
    """Frames come in pieces; each is taken when it is whole."""
    said = HELLO + frame(HEADERS, OK, 0x4) + frame(DATA, b"bytes") + frame(HEADERS, TRAILERS, 0x5)
    for cut in range(len(said)):
        answer = Answer()
        answer.receive(said[:cut])
        assert not answer.ended
        answer.receive(said[cut:])
        assert (answer.ended, bytes(answer.body)) == (True, b"bytes")


def test_settings_and_pings_are_acknowledged_once():
    """A server that hears nothing may close; an acknowledgment is not acknowledged."""
    answer = Answer()
    assert answer.receive(HELLO) == frame(SETTINGS, flags=1, stream=0)
    assert answer.receive(frame(PING, b"12345678", stream=0)) == frame(PING, b"12345678", 1, 0)
    assert answer.receive(frame(SETTINGS, flags=1, stream=0) + frame(PING, bytes(8), 1, 0)) == b""


@pytest.mark.parametrize(
    ("frames", "sentence"),
    [
        ([frame(RESET, b"\0\0\0\x08")], "reset with HTTP/2 error 8"),
        ([frame(GOAWAY, b"\0\0\0\1\0\0\0\x02", stream=0)], "went away with HTTP/2 error 2"),
        ([frame(PUSH, b"\0\0\0\2")], "pushes"),
        ([frame(DATA, b"x", stream=3)], "stream 3"),
        ([frame(DATA, b"\x05x", 0x8)], "padding"),
        ([frame(DATA, b"", 0x8)], "padding"),
        ([frame(CONTINUATION, OK, 0x4)], "out of its order"),
        ([frame(HEADERS, OK), frame(DATA, b"x")], "out of its order"),
        ([b"\0\x40\x01\0\0\0\0\0\1"], "too large"),
        ([frame(HEADERS)] + [frame(CONTINUATION, bytes(16_384))] * 5, "headers are too large"),
    ],
)
def test_what_breaks_the_protocol_is_told(frames, sentence):
    """Each with a sentence of its own."""
    with pytest.raises(BadFrame, match=sentence):
        answer_of(*frames)


def test_a_server_may_go_away_after_this_call():
    """Go announces the end of a connection without an error; what was asked is still answered."""
    gone = frame(GOAWAY, b"\0\0\0\1\0\0\0\0", stream=0)
    assert answer_of(gone, frame(HEADERS, OK + TRAILERS, 0x5)).ended


def test_a_request_says_that_it_wants_no_table_and_no_push():
    """Settings, the window of the connection, headers and the message; long values have a length of
    more than a byte.
    """
    sent = request({"name": "v" * 300}, b"body", 1 << 20)
    settings = "000100000000" + "000200000000" + "000400100000"
    window = ((1 << 20) - 65_535).to_bytes(4, "big")
    block = b"\0\x04name\x7f\xad\x01" + b"v" * 300
    assert sent == (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(SETTINGS, bytes.fromhex(settings), stream=0)
        + frame(WINDOW, window, stream=0)
        + frame(HEADERS, block, 0x4)
        + frame(DATA, b"body", 0x1)
    )
    assert list(read_headers(block)) == [("name", "v" * 300)]
