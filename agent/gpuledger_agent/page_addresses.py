"""Addresses of pages as settings name them: `[NAME=]URL` with commas between."""

from __future__ import annotations

from urllib.parse import urlsplit

from gpuledger_agent.settings import is_web_address


def named_addresses(text: str, name: str, noun: str, most: int) -> list[tuple[str, str]]:
    """Names (empty where none is given) and addresses of a setting; a bare host gets `/metrics`.

    `name`: what stands before the `=`, and `noun`: what the addresses are, in messages. Raises
    ValueError with a message, which holds no password.
    """
    result = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry:
            continue
        before, mark, after = entry.partition("=")
        given, url = (
            (before.strip(), after.strip()) if mark and "://" not in before else ("", entry)
        )
        shown = entry.rpartition("@")[2]  # without a password
        if not is_web_address(url):
            raise ValueError(f"{shown!r} is not [{name}=]http://HOST[:PORT][/PATH]")
        parts = urlsplit(url)
        if parts.username or parts.password:
            raise ValueError(f"{shown!r} must not hold a user name or a password")
        result.append((given, url if parts.path not in {"", "/"} else f"{url.rstrip('/')}/metrics"))
    if len(result) > most:
        raise ValueError(f"has {len(result)} {noun}, {most} are allowed")
    return result


def without_query(url: str) -> str:
    """The address without user, password and query."""
    parts = urlsplit(url)
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"
