"""Chats and webhooks by name, from the TOML file that the setting `hooks_file` names."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gpuledger_collector.settings import is_loopback, read_secret
from gpuledger_common.settings import SettingsError, read_toml

KEYS = ("address", "secret_file", "private")
MIN_SECRET = 24


@dataclass(frozen=True, slots=True)
class HookTarget:
    """A chat or webhook: its address, what its messages are signed with, whether it may lie in a
    private network.
    """

    address: str = field(repr=False)
    secret: bytes | None = field(default=None, repr=False)
    private: bool = False


def read_hooks(path: Path | None) -> dict[str, HookTarget]:
    """Chats and webhooks by name: an address, or a table with `address`, `secret_file` and
    `private`.

    Raises SettingsError, which never shows an address, because an address is a secret.
    """
    if path is None:
        return {}
    hooks = {}
    for name, value in read_toml(path).items():
        table = value if isinstance(value, dict) else {"address": value}
        if unknown := sorted(set(table) - set(KEYS)):
            raise SettingsError(
                f"{path}: {name}: {unknown[0]} is not known; known are {', '.join(KEYS)}"
            )
        address, private = table.get("address"), table.get("private", False)
        url = urlsplit(address) if isinstance(address, str) else None
        # credentials in an address would be shown by whatever logs it
        if url is None or not url.hostname or url.username is not None:
            raise SettingsError(
                f"{path}: {name} is not an address such as https://hooks.example.com/services/..."
            )
        if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname)):
            raise SettingsError(f"{path}: {name} must be https:// (or http:// on this machine)")
        if not isinstance(private, bool):
            raise SettingsError(f"{path}: {name}: private is neither true nor false")
        hooks[name] = HookTarget(
            str(address), _read_hook_secret(path, name, table.get("secret_file")), private
        )
    return hooks


def _read_hook_secret(path: Path, name: str, file: object) -> bytes | None:
    """The secret of a hook: `whsec_` and base64 as Standard Webhooks write it, or any text of 24
    characters.
    """
    if file is None:
        return None
    text = read_secret(path.parent / str(file), f"{path}: {name}: secret_file")
    if text.startswith("whsec_"):
        try:
            return base64.b64decode(text.removeprefix("whsec_"), validate=True)
        except ValueError as error:
            raise SettingsError(
                f"{path}: {name}: secret_file holds no base64 after whsec_"
            ) from error
    if len(text) < MIN_SECRET:
        raise SettingsError(
            f"{path}: {name}: secret_file must hold {MIN_SECRET} characters or more"
        )
    return text.encode()
