"""A digest: one message that tells of several, each with its first words; all of their texts are attached, whole."""

from __future__ import annotations

from gpuledger_collector.notifications.templating import CALM, Block, Page, day, instant, named
from gpuledger_collector.storage.notifications.delivery_rules import Digest, Told, counted_kinds
from gpuledger_collector.storage.notifications.messages import Content
from gpuledger_common.plurals import plural

SHOWN = 30
"""Messages that are told one by one; the others are counted, and attached like all."""
RULE = "-" * 78


def write(digest: Digest) -> Content:
    """Subject, text, HTML, and `messages.txt` with every word of what it tells of."""
    told = digest.messages
    count = plural(len(told), "message")
    span = f"{day(told[0].made_ms, digest.zone)} to {day(told[-1].made_ms, digest.zone)}"
    if day(told[0].made_ms, digest.zone) == day(told[-1].made_ms, digest.zone):
        span = day(told[0].made_ms, digest.zone)
    kinds = ", ".join(f"{number} {kind}" for kind, number in counted_kinds(told))
    rest = len(told) - SHOWN
    notes = [f"{plural(rest, 'more message')} stand in messages.txt."] if rest > 0 else []
    page = Page(
        subject=f"[GPU Ledger] {count} of {span}: {kinds}",
        verdict=f"{count} of {span}, told in one: {kinds}.",
        blocks=[_block(one, digest.zone) for one in told[:SHOWN]],
        why="You asked for a digest, or for no more than so many messages a day ([[recipient]]): nothing was left out, "
        "and messages.txt has each of them whole.",
        tone=CALM,
        notes=notes,
        attachments={"messages.txt": "\n".join(_whole(one, digest.zone) for one in told)},
    )
    return page.content()


def _block(one: Told, zone: str) -> Block:
    first = one.text.strip().split("\n\n", 1)[0].replace("\n", " ")
    return Block(
        named(one.subject, 200),
        instant(one.made_ms, zone),
        (),
        [(named(first, 400), "")] if first else [],
        ("Answer it", one.link) if one.link else None,
    )


def _whole(one: Told, zone: str) -> str:
    return f"{RULE}\n{named(one.subject, 400)}\n{instant(one.made_ms, zone)}\n{RULE}\n{one.text.rstrip()}\n"
