"""What a command prints while its ledger is open."""

import io
import sys

from gpuledger_collector.cli import terminal


class Stream(io.StringIO):
    """Remembers each text as it was written: a color is recognized within one of them."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def write(self, text):
        self.texts.append(text)
        return len(text)


def test_an_answer_goes_out_when_the_ledger_is_closed(monkeypatch):
    """Text by text, as it was written, also one that no encoding holds, and after an error too."""
    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    texts = ["\x1b[1mhead\x1b[0m", "\udcff", "row\n"]
    try:
        with terminal.hold_output():
            sys.stdout.write(texts[0])
            sys.stdout.writelines(texts[1:])
            assert stream.texts == []
            raise SystemExit(1)
    except SystemExit:
        assert stream.texts == texts
    assert sys.stdout is stream


def test_a_long_export_streams(monkeypatch):
    """More than an answer is not kept in memory, so that a reader who has enough can end it."""
    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(terminal, "MOST_HELD", 10)
    with terminal.hold_output():
        sys.stdout.writelines(f"{number:03d}\n" for number in range(2))
        assert stream.texts == []
        sys.stdout.write("002\n")
        assert stream.texts == ["000\n", "001\n", "002\n"]
        sys.stdout.write("003\n")
        assert stream.texts[-1] == "003\n"
    assert len(stream.texts) == 4
