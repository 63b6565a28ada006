"""Settings: file and environment, checked at start, every fault in one go."""

from pathlib import Path

import pytest

from gpuledger_collector.settings import Settings, load
from gpuledger_common.settings import SettingsError

HOME = Path("/home/somebody")


def test_nothing_is_needed():
    """Without file and environment: loopback, the embedded database in the user's data folder, no
    tokens.
    """
    settings = load(None, {}, HOME)
    assert settings.listen == "127.0.0.1:8440"
    assert settings.data_dir == HOME / ".local/share/gpuledger"
    assert settings.database_dsn() is None
    assert settings.agent_tokens() == frozenset()


def test_the_environment_wins_over_the_file(tmp_path):
    """A key in both places has the environment's value; types are those of the fields."""
    (tmp_path / "c.toml").write_text('writers = 4\njobs = false\nlisten = "127.0.0.1:1"\n')
    settings = load(
        tmp_path / "c.toml", {"GPULEDGER_WRITERS": "3", "GPULEDGER_DATA_DIR": "/srv/ledger"}, HOME
    )
    assert (settings.writers, settings.jobs, settings.listen_port) == (3, False, 1)
    assert settings.data_dir == Path("/srv/ledger")


@pytest.mark.parametrize(
    ("text", "environment", "sentence"),
    [
        ("writer = 3", {}, "writer is not a setting; the nearest one is writers"),
        (
            "",
            {"GPULEDGER_DSM": "x"},
            "GPULEDGER_DSM is not a setting; the nearest one is GPULEDGER_DSN",
        ),
        ('writers = "many"', {}, "writers: 'many' is not a whole number"),
        ("jobs = 3", {}, "jobs: 3 is neither true nor false"),
        ("dsn = 3", {}, "dsn: 3 is not a text"),
        ("writers = 0", {}, "writers: must be at least 1"),
        ('listen = "8440"', {}, "is not ADDRESS:PORT"),
        ('listen = "0.0.0.0:8440"', {}, "needs agent_token_file"),
        ('listen = "0.0.0.0:8440"\nagent_token_file = "/t"', {}, "needs tls_certificate_file"),
        ('tls_key_file = "/k"', {}, "give both or none"),
        ('log_level = "loud"', {}, "log_level"),
        ('dsn = "x"\ndsn_file = "/y"', {}, "give one of them"),
        ("= 3", {}, "is not TOML"),
    ],
)
def test_faults_are_named(tmp_path, text, environment, sentence):
    """Each fault says where it stands and what would be right."""
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(tmp_path / "c.toml", environment, HOME)
    assert sentence in str(caught.value)


def test_all_faults_are_said_at_once(tmp_path):
    """One run shows every unknown key and every bad value."""
    file = tmp_path / "c.toml"
    file.write_text(
        'writer = 3\n# a comment\nflush_batches = "x"\nmail_server = "nowhere"\nlog_level ='
        ' "loud"\n'
    )
    with pytest.raises(SettingsError) as caught:
        load(file, {"GPULEDGER_JOBS": "perhaps"}, HOME)
    assert [fault.split(": ")[:2] for fault in str(caught.value).split("; ") if ": " in fault] == [
        [f"{file}:1", "writer is not a setting"],
        [f"{file}:3", "flush_batches"],
        ["GPULEDGER_JOBS", "'perhaps' is neither true nor false"],
        [f"{file}:5", "log_level"],
        [f"{file}:4", "mail_server"],
    ]


def test_the_agents_settings_are_left_alone():
    """A machine that runs both has GPULEDGER_AGENT_* in its environment, except for the collector's
    own key.
    """
    settings = load(None, {"GPULEDGER_AGENT_NODE": "n1"}, HOME)
    assert settings.agent_token_file is None


@pytest.mark.parametrize("variable", ["GPULEDGER_TEST_ENGINES", "GPULEDGER_MODEL_CHRONOS"])
def test_variables_of_tests_and_models_are_no_settings(variable):
    """A command does not mind which servers the tests were given, and which models forecasts use."""
    assert load(None, {variable: "required"}, HOME) == load(None, {}, HOME)


def test_secrets_come_from_files(tmp_path):
    """DSN and tokens are read from files; a missing or empty file is a sentence with the setting's
    name.
    """
    (tmp_path / "dsn").write_text("postgresql://db/ledger\n")
    (tmp_path / "tokens").write_text("one\ntwo\n")
    settings = Settings(dsn_file=tmp_path / "dsn", agent_token_file=tmp_path / "tokens")
    assert settings.database_dsn() == "postgresql://db/ledger"
    assert settings.agent_tokens() == {"one", "two"}
    with pytest.raises(SettingsError, match="dsn_file"):
        Settings(dsn_file=tmp_path / "none").database_dsn()
    (tmp_path / "tokens").write_text("\n")
    with pytest.raises(SettingsError, match="no token"):
        settings.agent_tokens()


def test_beyond_loopback_with_tokens_and_tls_is_allowed(tmp_path):
    """An address that others can reach is fine once it is protected."""
    (tmp_path / "c.toml").write_text(
        'listen = "[::]:8440"\nagent_token_file = "/t"\ntls_certificate_file = "/c"\ntls_key_file ='
        ' "/k"\n'
    )
    settings = load(tmp_path / "c.toml", {}, HOME)
    assert (settings.listen_host, settings.listen_port, settings.on_loopback) == ("::", 8440, False)
