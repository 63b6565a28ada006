"""A digest: one mail for several messages, each with its first paragraph; their full texts are
attached.
"""

from __future__ import annotations

from gpuledger_collector.insight.notifications.delivery_rules import (
    Digest,
    DigestEntry,
    count_kinds,
)
from gpuledger_collector.insight.notifications.messages import Content
from gpuledger_collector.notifications.templating import (
    CALM,
    MailBlock,
    MailPage,
    day,
    instant,
    safe_name,
)
from gpuledger_common.plurals import plural

MAX_SHOWN = 30
"""Messages that are shown one by one; the others are only counted and attached."""
RULE = "-" * 78


def write(digest: Digest) -> Content:
    """Subject, text, HTML, and `messages.txt` with the full text of every message."""
    messages, zone = digest.messages, digest.zone
    first, last = day(messages[0].made_ms, zone), day(messages[-1].made_ms, zone)
    kinds = ", ".join(f"{number} {kind}" for kind, number in count_kinds(messages))
    summary = (
        f"{plural(len(messages), 'message')} of {first if first == last else f'{first} to {last}'}"
    )
    hidden = len(messages) - MAX_SHOWN
    return MailPage(
        subject=f"[GPU Ledger] {summary}: {kinds}",
        verdict=f"{summary} in one mail: {kinds}.",
        blocks=[_block(message, zone) for message in messages[:MAX_SHOWN]],
        why=(
            "You asked for a digest, or for a limit of messages a day ([[recipient]]). Nothing was"
            " left out: messages.txt has the full text of each."
        ),
        tone=CALM,
        notes=[f"{plural(hidden, 'more message')} in messages.txt."] if hidden > 0 else [],
        attachments={"messages.txt": "\n".join(_full_text(message, zone) for message in messages)},
    ).content()


def _block(message: DigestEntry, zone: str) -> MailBlock:
    paragraph = message.text.strip().split("\n\n", 1)[0].replace("\n", " ")
    return MailBlock(
        safe_name(message.subject, 200),
        instant(message.made_ms, zone),
        (),
        [(safe_name(paragraph, 400), "")] if paragraph else [],
        (
            ("Respond", message.link)
            if message.link
            else ("Open", message.page)
            if message.page
            else None
        ),
    )


def _full_text(message: DigestEntry, zone: str) -> str:
    head = f"{RULE}\n{safe_name(message.subject, 400)}\n{instant(message.made_ms, zone)}\n{RULE}"
    return f"{head}\n{message.text.rstrip()}\n"
