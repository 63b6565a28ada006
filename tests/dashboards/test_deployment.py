"""The Compose file, the images and what they mount: checked against the product itself, without an
engine.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema_rs
import pytest
import typer.main
import yaml

from gpuledger_agent import settings as agent_settings
from gpuledger_agent.sources.fleet import Fleet
from gpuledger_collector import settings as collector_settings
from gpuledger_collector.cli import build
from gpuledger_collector.cli.session import CONFIG_VARIABLE, load_settings
from gpuledger_common.settings import SettingsError

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
CITUS = dict(
    line.split("=", 1)
    for line in (ROOT / "deploy/docker/citus.env").read_text().splitlines()
    if line[:1] not in ("#", "")
)


def interpolated(**given):
    """The Compose file with these variables, the others by their defaults."""
    return yaml.safe_load(VARIABLE.sub(lambda match: given.get(match[1], match[2]), TEXT))


COMPOSE = interpolated()
SERVICES = COMPOSE["services"]
IMAGES = {
    name: ROOT / "deploy" / "docker" / f"{name}.Dockerfile" for name in ("collector", "agent")
}
SCRAPED = yaml.safe_load((ROOT / "deploy/docker/prometheus.yml").read_text())
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
AGENTS = [name for name, service in OURS.items() if service["command"][0] == "run"]
"""Nodes, true and simulated ones."""


def instructions(path):
    """(instruction, rest) of a Dockerfile, comments and continuations gone."""
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def secrets_made(folder):
    """The secrets of a copy of deploy/docker, made by the script that people run."""
    shutil.copy(ROOT / "deploy/docker/make-secrets", folder)
    subprocess.run([sys.executable, folder / "make-secrets"], check=True, capture_output=True)
    return folder / "secrets"


def test_compose_takes_the_file():
    """By the public schema of the Compose specification (Apache-2.0, as docker-compose 1.29.2
    carries it).
    """
    schema = json.loads((ROOT / "tests/fakes/compose_spec.json").read_text())
    jsonschema_rs.Draft7Validator(schema).validate(COMPOSE)
    jsonschema_rs.Draft7Validator(schema).validate(interpolated(**CITUS))


def test_every_variable_has_a_default_and_none_is_a_setting():
    """A clone without an environment file works; `gpuledger` in the same shell does not take a name
    for a setting.
    """
    names = {name for name, _ in VARIABLE.findall(TEXT)}
    assert set(re.findall(r"\$\{(\w+)", TEXT)) == names
    assert not [name for name in names if name.startswith("GPULEDGER_")]


def test_citus_replaces_postgres():
    """One database with a volume of its own; the tables are distributed before anybody writes or is
    granted rights.
    """
    assert set(CITUS) <= {name for name, _ in VARIABLE.findall(TEXT)}
    services = interpolated(**CITUS)["services"]
    assert set(services) == set(SERVICES)
    assert services["postgres"]["image"].startswith("citusdata/citus")
    (volume,) = services["postgres"]["volumes"]
    assert volume != SERVICES["postgres"]["volumes"][0]
    assert volume.split(":")[0] in COMPOSE["volumes"]
    assert list(commands(services["schema"])) == [["db", "upgrade"], ["db", "distribute"]]
    for name in ("collector", "reader"):
        assert services[name]["depends_on"] == {
            "schema": {"condition": "service_completed_successfully"}
        }


def test_what_runs_once_ends():
    """Services that others wait for to complete never restart, and the database is ready before
    they begin.
    """
    once = {
        other
        for service in SERVICES.values()
        for other, wait in service.get("depends_on", {}).items()
        if wait["condition"] == "service_completed_successfully"
    }
    assert once == {"schema", "reader"}
    assert not [name for name in once if "restart" in SERVICES[name]]
    # The official image prepares a new database with a server that answers on its socket alone.
    assert "--host=127.0.0.1" in SERVICES["postgres"]["healthcheck"]["test"]


def commands(service):
    """The command lines of `gpuledger` that a service runs."""
    if "entrypoint" not in service:
        yield service["command"]
        return
    assert service["entrypoint"] == ["sh", "-ec"]
    for line in service["command"][0].split(";"):
        program, *arguments = shlex.split(line)
        if program != "true":
            assert program == "gpuledger"
            yield arguments


def test_images_build_behind_a_proxy():
    """Each argument is one that the build stage declares or that Docker knows; nothing of it is in
    the last stage.
    """
    for name, service in OURS.items():
        path = ROOT / service["build"]["dockerfile"]
        declared = [rest for word, rest in instructions(path) if word == "ARG"]
        last = path.read_text().rpartition("\nFROM ")[2]
        given = set(service["build"]["args"])
        assert given - {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} <= set(declared), name
        assert not [argument for argument in given if argument in last]
        assert {"CA_CERTIFICATES", "PIP_INDEX_URL"} <= given


def test_what_is_named_is_there():
    """Secrets, networks, volumes, files that are mounted, and services that others wait for."""
    for name, service in SERVICES.items():
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"]), name
        assert set(service["networks"]) <= set(COMPOSE["networks"]), name
        for other, wait in service.get("depends_on", {}).items():
            assert wait["condition"] in ("service_healthy", "service_completed_successfully"), name
            assert other in SERVICES
            assert (
                wait["condition"] != "service_healthy"
                or "healthcheck" in SERVICES[other]
                or other in OURS
            )
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (
                (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
            ), volume
    several = [*SERVICES.values(), *interpolated(**CITUS)["services"].values()]
    used = {volume.split(":")[0] for service in several for volume in service.get("volumes", [])}
    assert set(COMPOSE["volumes"]) <= used


def test_the_script_makes_every_secret(tmp_path):
    """All that the Compose file names, readable in the containers, and the DSN with the password of
    the database.
    """
    folder = secrets_made(tmp_path)
    named = {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
    assert {path.name for path in folder.iterdir()} == named
    assert (folder / "postgres_password").read_text() in (folder / "dsn").read_text()
    before = {path.name: path.read_text() for path in folder.iterdir()}
    subprocess.run(
        [sys.executable, tmp_path / "make-secrets", "--database", "citus"],
        check=True,
        capture_output=True,
    )
    after = {path.name: path.read_text() for path in folder.iterdir()}
    assert {name for name in named if before[name] != after[name]} == {"dsn"}
    assert "@citus:5432" in after["dsn"]


@pytest.mark.parametrize("name", [name for name in OURS if name not in AGENTS])
def test_the_collectors_settings_are_good(name, tmp_path):
    """The file and the environment load without a fault, with the secrets where they are mounted."""
    folder = secrets_made(tmp_path)
    source, inside, _ = SERVICES[name]["volumes"][0].split(":")
    config = tmp_path / "collector.toml"
    config.write_text((ROOT / source).read_text().replace("/run/secrets", str(folder)))
    environment = {**image_environment("collector"), **SERVICES[name]["environment"]}
    given = {key: value.replace("/run/secrets", str(folder)) for key, value in environment.items()}
    assert given.pop(CONFIG_VARIABLE) == inside
    loaded = collector_settings.load(config, given, tmp_path)
    assert loaded.agent_tokens()
    assert (loaded.database_dsn() or "").startswith("postgresql://")
    assert loaded.listen_port == 8440
    host, _, port = loaded.mail_server.partition(":")
    assert (host, port) == ("mail", "1025")
    assert SERVICES["mail"]["image"].startswith("axllent/mailpit")


def test_a_variable_names_the_settings_file(tmp_path, monkeypatch):
    """As in the container, where doctor and every other command then read the collector's settings;
    --config wins.
    """
    for name, listen in (("variable.toml", "127.0.0.1:1"), ("option.toml", "127.0.0.1:2")):
        (tmp_path / name).write_text(f'listen = "{listen}"\n')
    for name in [name for name in os.environ if name.startswith("GPULEDGER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "variable.toml"))
    assert load_settings().listen == "127.0.0.1:1"
    assert load_settings(tmp_path / "option.toml").listen == "127.0.0.1:2"
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    assert load_settings().listen == collector_settings.Settings().listen
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "missing.toml"))
    with pytest.raises(SettingsError, match=r"missing\.toml: cannot be read"):
        load_settings()


@pytest.mark.parametrize("name", AGENTS)
def test_the_agents_settings_are_good(name, tmp_path):
    """The environment loads without a fault, the token is that of the collector, and the collector
    is where it is.
    """
    folder = secrets_made(tmp_path)
    image = SERVICES[name]["image"].removeprefix("gpuledger-")
    environment = {**image_environment(image), **SERVICES[name]["environment"]}
    given = {key: value.replace("/run/secrets", str(folder)) for key, value in environment.items()}
    loaded = agent_settings.load(None, given)
    assert loaded.collector_url == "http://collector:8440"
    assert loaded.token_path.read_text() == (folder / "agent_token").read_text()
    assert loaded.metrics_listen == "0.0.0.0:9440"


def image_environment(image):
    """GPULEDGER_* of an image."""
    *_, text = [rest for word, rest in instructions(IMAGES[image]) if word == "ENV"]
    return dict(pair.split("=", 1) for pair in shlex.split(text) if pair.startswith("GPULEDGER_"))


@pytest.mark.parametrize("name", OURS)
def test_commands_are_commands(name):
    """Each command line is parsed by the program that the image starts."""
    if name in AGENTS:
        from gpuledger_agent.cli import parser

        given = parser().parse_args(SERVICES[name]["command"])
        assert given.node is None or given.node in {node.name for node in Fleet(7).nodes}
        return
    for arguments in commands(SERVICES[name]):
        parse(typer.main.get_command(build()), arguments)


def parse(command, arguments):
    """Walk to the command and parse its options; raises what a user would see."""
    while hasattr(command, "commands"):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context("gpuledger", list(arguments))


def test_ports_are_those_that_programs_listen_on():
    """Published on loopback alone; scraped where they are."""
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    for ports in published.values():
        assert all(port.startswith("127.0.0.1:") for port in ports)
    assert published["collector"] == ["127.0.0.1:8440:8440"]
    targets = {job["job_name"]: job for job in SCRAPED["scrape_configs"]}
    assert targets["gpuledger-collector"]["static_configs"] == [{"targets": ["collector:8440"]}]
    (lookup,) = targets["gpuledger-agent"]["dns_sd_configs"]
    aliased = AGENTS
    assert all(
        SERVICES[name]["networks"]["inside"]["aliases"] == lookup["names"] for name in aliased
    )
    assert f":{lookup['port']}" == image_environment("agent")[
        "GPULEDGER_AGENT_METRICS_LISTEN"
    ].removeprefix("0.0.0.0")
    jobs = set(
        re.findall(r'job="([^"]+)"', (ROOT / "dashboards/alerts/prometheus.yml").read_text())
    )
    assert jobs == set(targets)


def test_prometheus_takes_its_configuration():
    """By promtool, with the rules file where it is mounted."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is in Debian's prometheus")
    path = ROOT / "deploy/docker/prometheus.yml"
    answer = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert SCRAPED["rule_files"] == ["/etc/prometheus/rules/gpuledger.yml"]
    mounts = SERVICES["prometheus"]["volumes"]
    assert "./dashboards/alerts/prometheus.yml:/etc/prometheus/rules/gpuledger.yml:ro" in mounts


def test_grafana_finds_everything():
    """Each name in the provisioning is set, the boards are mounted where the provider looks, the
    reader is the role.
    """
    environment = SERVICES["grafana"]["environment"]
    provisioning = ROOT / "dashboards/provisioning"
    text = "".join(
        (provisioning / name).read_text()
        for name in ("datasources/gpuledger.yaml", "alerting/contact.yaml")
    )
    named = set(re.findall(r"\$\{(\w+)\}", text))
    assert named <= set(environment)
    assert named == {name for name in environment if name.startswith("GRAFANA_")}
    assert not any(name.startswith("GPULEDGER") for name in named), (
        "every gpuledger command would refuse them"
    )
    (provider,) = yaml.safe_load((provisioning / "dashboards/gpuledger.yaml").read_text())[
        "providers"
    ]
    assert f"./dashboards/json:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]
    home = environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (ROOT / "dashboards/json" / Path(home).name).is_file()
    assert SERVICES["reader"]["command"][2] == environment["GRAFANA_LEDGER_USER"]
    assert "reader_password" in SERVICES["grafana"]["secrets"]


def test_simulated_nodes_run_where_the_fleet_is():
    """In the collector's image, as an agent: its program, its folder, its port and its health."""
    simulated = [service for name, service in SERVICES.items() if name.startswith("simulated-")]
    assert len(simulated) == 3
    dockerfile = ROOT / SERVICES["agent"]["build"]["dockerfile"]
    defaults = dict(last.split("=", 1) for last in dict(instructions(dockerfile))["ENV"].split())
    port = dict(instructions(dockerfile))["EXPOSE"]
    for service in simulated:
        assert service["image"] == SERVICES["collector"]["image"] != SERVICES["agent"]["image"]
        assert service["build"] == SERVICES["collector"]["build"]
        assert service["entrypoint"] == ["gpuledger-agent"]
        assert service["command"][:3] == ["run", "--source", "simulated"]
        for name in ("GPULEDGER_AGENT_SPOOL_DIR", "GPULEDGER_AGENT_METRICS_LISTEN"):
            assert service["environment"][name] == defaults[name]
        assert any(mount.startswith(f"{service['working_dir']}:") for mount in service["tmpfs"])
        assert f":{port}/metrics" in service["healthcheck"]["test"][-1]


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_runs_without_root(name):
    """A user of its own, a healthcheck on the port that it exposes, a program that the package
    installs.
    """
    found = instructions(IMAGES[name])
    last = dict(found)
    assert last["USER"] == "10001:10001"
    assert f":{last['EXPOSE']}/" in last["HEALTHCHECK"]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert json.loads(last["ENTRYPOINT"])[0] in scripts
    steps = [word for word, _ in found]
    assert steps.index("USER") > max(at for at, word in enumerate(steps) if word == "RUN")
    allowed = (ROOT / ".dockerignore").read_text().split()
    for word, rest in found:
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in allowed, source


@pytest.mark.long
@pytest.mark.parametrize("name", IMAGES)
def test_an_images_install_steps_work(name, tmp_path):
    """COPY and RUN of the build stage, in an empty folder with its own environment; the program
    then answers.
    """
    work, home = tmp_path / "src", tmp_path / "opt"
    work.mkdir()
    for word, rest in instructions(IMAGES[name]):
        if word == "COPY" and rest.startswith("--from"):
            break
        if word == "COPY":
            copy(*shlex.split(rest), work=work)
        elif word == "RUN" and "useradd" not in rest:
            command = re.sub(
                r"^python ", f"{sys.executable} ", rest.replace("/opt/gpuledger", str(home))
            )
            done = subprocess.run(
                command, shell=True, cwd=work, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (rest, done.stdout[-2000:] + done.stderr[-2000:])
    site = next(home.glob("lib/python3*/site-packages"))
    assert not [*site.glob("**/tests"), *site.glob("pip"), *site.glob("**/*.a")]
    # A read-only image cannot add bytecode.
    assert list(site.glob("gpuledger_common/__pycache__/wire.*.pyc"))
    program = home / "bin" / ("gpuledger-agent" if name == "agent" else "gpuledger")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GPULEDGER_")}
    shown = subprocess.run(
        [program, "--help"], capture_output=True, text=True, check=True, env=clean, cwd=tmp_path
    )
    assert "serve" in shown.stdout if name == "collector" else "simulate" in shown.stdout
    fleet = list(site.glob("gpuledger_agent/**/fleet.py"))
    assert bool(fleet) == (name == "collector")
    listed = subprocess.run(
        [home / "bin" / "gpuledger-agent", "simulate", "--list-nodes"],
        capture_output=True,
        text=True,
        check=False,
        env=clean,
        cwd=tmp_path,
    )
    assert listed.returncode == (0 if fleet else 3), listed.stderr


def copy(*names, work):
    """COPY SOURCE... TARGET."""
    *sources, target = names
    for source in sources:
        place = work / target / (source if target.endswith("/") else "")
        place.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, place)


def test_pages_name_commands_that_exist():
    """Every `gpuledger ...` line of the runbooks and of the guide, down to the subcommand."""
    root = typer.main.get_command(build())
    pages = [*sorted((ROOT / "docs/runbooks").glob("*.md")), ROOT / "docs/guides/deploy.md"]
    for page in pages:
        for line in re.findall(r"(?:^|`|\s)gpuledger ((?:[a-z-]+ ?){1,2})", page.read_text()):
            first, *rest = line.split()
            assert first in root.commands, (page.name, line)
            group = root.commands[first]
            if rest and hasattr(group, "commands"):
                assert rest[0] in group.commands, (page.name, line)
        for name in re.findall(r"gpuledger-agent ([a-z]+)", page.read_text()):
            assert name in {
                "run",
                "once",
                "check",
                "record",
                "queue",
                "release",
                "resume",
                "simulate",
            }, page.name
