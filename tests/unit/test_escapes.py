"""What is not seen is shown as an escape, whatever Python thinks is printable."""

import re
import sys

from gpuledger_common import escapes


def hidden():
    """Every character that the patterns name."""
    return [
        chr(code)
        for code in range(sys.maxunicode + 1)
        if escapes._ONE_LINE.match(chr(code)) and not 0xD800 <= code <= 0xDFFF
    ]


def test_every_hidden_character_is_escaped_by_all_of_them():
    """Alone and beside a line feed: variation selectors are printable to Python, and make two names
    look alike.
    """
    characters = hidden()
    assert len(characters) > 4000
    for character in characters:
        text = f"vision{character}"
        assert escapes.escape_text(text).isascii(), hex(ord(character))
        assert escapes.escape_cells(["a", text])[1].isascii(), hex(ord(character))
        assert escapes.neutral(text).isascii(), hex(ord(character))
        if character not in "\n\t":
            assert escapes.escape_lines(f"a\n{text}").isascii(), hex(ord(character))


def test_what_is_seen_stays():
    text = "Überlauf – 8 GPUs · 漢字"
    assert escapes.escape_text(text) == escapes.escape_lines(text) == text
    assert escapes.escape_lines(f"{text}\n\tnext") == f"{text}\n\tnext"
    assert re.fullmatch(r"a\\ud[0-9a-f]{3}\\ud[0-9a-f]{3}", escapes.escape_text("a\U000e0101"))
