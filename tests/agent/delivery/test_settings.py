"""The agent's settings: the file, then the environment, then the command line; every fault at once."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_agent import settings
from gpuledger_agent.settings import FIELDS, PREFIX, Settings, SettingsError, load


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path):
    """Each later source overrides what the earlier ones gave, and leaves the rest."""
    config = tmp_path / "agent.toml"
    config.write_text('pool = "file"\nnode = "file"\nsource = "simulated"\n')
    made = load(
        config,
        {"GPULEDGER_AGENT_NODE": "env", "GPULEDGER_AGENT_SOURCE": "nvml", "HOME": "/x"},
        node="line",
    )
    assert (made.pool, made.source, made.node) == ("file", "nvml", "line")


def test_all_faults_are_told_at_once(tmp_path):
    """A misspelt name (with its neighbor), a wrong kind and an unknown setting stand in one
    message, with places.
    """
    config = tmp_path / "agent.toml"
    config.write_text("sample_intervall_s = 5\nspool_bytes = 1.5\npush_interval_s = true\n")
    with pytest.raises(SettingsError) as caught:
        load(config, {"GPULEDGER_AGENT_POOOL": "x"})
    message = str(caught.value)
    for words in (
        f"{config}:1: sample_intervall_s",
        "sample_interval_s",
        "1.5 is not a int",
        "True is not a float",
        "GPULEDGER_AGENT_POOOL",
        "nearest one is GPULEDGER_AGENT_POOL",
    ):
        assert words in message


@pytest.mark.parametrize("name", ["spool_dir", "token_file", "ca_file", "owner_rules_file"])
def test_an_empty_path_is_no_path(name):
    """`GPULEDGER_AGENT_SPOOL_DIR=` means the default, not the folder in which the agent happens to
    run.
    """
    assert getattr(load(None, {PREFIX + name.upper(): ""}), name) is None
    assert getattr(load(None, {PREFIX + name.upper(): "/x"}), name) == Path("/x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sample_interval_s", "nan"),
        ("sample_interval_s", "inf"),
        ("sample_interval_s", "0"),
        ("busy_threshold", "1"),
        ("busy_threshold", "-0.1"),
        ("spool_bytes", "1"),
        ("owners", "slurm,bogus"),
        ("collector_url", "http://h:0"),
        ("collector_url", "//h"),
        ("metrics_listen", "9440x"),
        ("log_level", "loud"),
        ("log_format", "xml"),
        ("dcgm_names", "both"),
    ],
)
def test_what_lies_out_of_range_is_named(name, value):
    """The sentence begins with the setting."""
    with pytest.raises(SettingsError, match=f"^{name}: "):
        load(None, {PREFIX + name.upper(): value})


@given(
    st.dictionaries(
        st.sampled_from(sorted(FIELDS)) | st.text(max_size=8), st.text(max_size=8), max_size=3
    )
)
def test_any_environment_gives_settings_or_a_sentence(values):
    """No value of any variable ends in anything but settings or a SettingsError."""
    try:
        made = load(None, {PREFIX + name.upper(): value for name, value in values.items()})
    except SettingsError as error:
        made = error
    assert isinstance(made, Settings) or str(made)


def test_a_persons_command_finds_the_folder_of_the_service(tmp_path, monkeypatch):
    """`sudo gpuledger-agent release` must reach the agent of the unit; what a person sets goes
    before that.
    """
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    service = tmp_path / "service"
    monkeypatch.setattr(settings, "SERVICE_STATE", service)
    assert Settings().agent_folder == tmp_path / "home/gpuledger-agent"
    # As DynamicUser= has it; others may not look behind it.
    service.symlink_to(tmp_path / "private")
    with pytest.raises(SettingsError, match="run this as root"):
        _ = Settings().agent_folder
    (tmp_path / "private").mkdir()
    assert Settings().agent_folder == service
    assert Settings().spool_folder == tmp_path / "home/gpuledger-agent"
    assert Settings(spool_dir=tmp_path).agent_folder == tmp_path


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    """A container with a user id of no name, and no HOME: a sentence, no traceback."""
    for name in ("HOME", "XDG_STATE_HOME", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54321)
    with pytest.raises(SettingsError, match="spool_dir: this user has no home folder"):
        _ = Settings().spool_folder
