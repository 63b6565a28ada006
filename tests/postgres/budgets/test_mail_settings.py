"""Settings of mails and hooks: what contradicts itself is a sentence, and secrets are never told."""

from __future__ import annotations

import pytest

from gpuledger_collector import wiring
from gpuledger_collector.config.hooks import read_hooks
from gpuledger_collector.notifications.folder import MailFolder
from gpuledger_collector.notifications.smtp import SmtpTransport
from gpuledger_collector.settings import load
from gpuledger_collector.storage.database import Database
from gpuledger_common.settings import SettingsError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"MAIL_SERVER": "mail.example.com"}, "is not HOST:PORT"),
        ({"MAIL_SERVER": "mail.example.com:587", "MAIL_DIR": "/mails"}, "give one of them"),
        ({"MAIL_SECURITY": "ssl"}, "starttls, tls or none"),
        ({"MAIL_USER": "ledger"}, "mail_user and mail_password_file"),
        (
            {
                "MAIL_SERVER": "mail.example.com:25",
                "MAIL_SECURITY": "none",
                "MAIL_USER": "x",
                "MAIL_PASSWORD_FILE": "/p",
            },
            "in clear",
        ),
        ({"MAIL_FROM": "ledger"}, "is not a mail address"),
        ({"MAIL_FROM": "a@b\nBcc: c@d.example"}, "is not a mail address"),
    ],
)
def test_contradictions_are_named(given, said, tmp_path) -> None:
    """One sentence each."""
    with pytest.raises(SettingsError, match=said):
        load(None, {f"GPULEDGER_{name}": value for name, value in given.items()}, tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        'a = "http://hooks.example.com/secret"',
        'a = "secret"',
        "a = 1",
        'a = "https://me:secret@example.com/"',
    ],
)
def test_hooks_are_https_and_stay_secret(line, tmp_path) -> None:
    """A bad address is named by its name, not told."""
    path = tmp_path / "hooks.toml"
    path.write_text(line)
    with pytest.raises(SettingsError) as caught:
        read_hooks(path)
    assert ": a " in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_sender_takes_the_configured_ways(tmp_path) -> None:
    """A server, or a folder, and hooks by name; the password is read when it is needed."""
    (tmp_path / "hooks.toml").write_text('ops = "https://hooks.example.com/services/1"')
    (tmp_path / "password").write_text("s3cret\n")
    environment = {
        "GPULEDGER_MAIL_SERVER": "[::1]:465",
        "GPULEDGER_MAIL_SECURITY": "tls",
        "GPULEDGER_MAIL_USER": "ledger",
        "GPULEDGER_MAIL_PASSWORD_FILE": str(tmp_path / "password"),
        "GPULEDGER_HOOKS_FILE": str(tmp_path / "hooks.toml"),
    }
    made = wiring.sender(load(None, environment, tmp_path), Database(""))
    assert set(made.transports) == {"mail", "slack", "teams", "webhook"}
    smtp = made.transports["mail"]
    assert isinstance(smtp, SmtpTransport)
    assert (smtp.host, smtp.port, smtp.security, smtp.password()) == ("::1", 465, "tls", "s3cret")
    folder = wiring.sender(
        load(None, {"GPULEDGER_MAIL_DIR": str(tmp_path)}, tmp_path), Database("")
    )
    assert isinstance(folder.transports["mail"], MailFolder)
