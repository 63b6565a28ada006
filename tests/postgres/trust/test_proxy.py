"""A proxy that verified who somebody is: believed from its own address alone, and only for names
that have a token.
"""

import pytest

from fakes.collector import running
from fakes.two_teams import token
from gpuledger_collector.settings import Settings, check
from gpuledger_common.settings import SettingsError

HEADER = "X-Auth-Request-Email"
TRUSTED = {"identity_header": HEADER, "trusted_proxies": "127.0.0.1, 10.0.0.0/8"}
SOMEWHERE_ELSE = {**TRUSTED, "trusted_proxies": "10.0.0.0/8"}


@pytest.fixture
def ada(dsn):
    return token(dsn, "viewer", "ada@example.com", owner={"team": "vision"})


def ask(collector, path="/v1/budgets", **headers):
    status, _, answer = collector.request(
        "GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    return status, answer


def test_a_person_is_who_the_proxy_says(dsn, ada):
    """With the reach of the token of that name; a name without one, or an agent's, is 403; no name
    is 401.
    """
    token(dsn, "agent", "gpu-07", node="gpu-07")
    with running(dsn, **TRUSTED) as collector:
        named = {HEADER: "ada@example.com"}
        assert ask(collector, **named)[0] == 200
        assert ask(collector, "/v1/nodes", **named)[0] == 403
        for other in ("eve@example.com", "gpu-07", "", " "):
            assert ask(collector, **{HEADER: other})[0] in ({403} if other.strip() else {401})
        assert ask(collector)[0] == 401
        assert ask(collector, Authorization="Bearer gpl_guess", **named)[0] == 401


@pytest.mark.parametrize("settings", [{}, SOMEWHERE_ELSE])
def test_nobody_else_is_believed(dsn, ada, settings):
    """Threat: a forged identity header.

    Off by default; from an address that is not the proxy's it says nothing.
    """
    with running(dsn, **settings) as collector:
        assert ask(collector, **{HEADER: "ada@example.com"})[0] == 401
        assert (
            ask(collector, **{HEADER: "ada@example.com", "X-Forwarded-For": "10.0.0.1"})[0] == 401
        )
        assert ask(collector, Authorization=f"Bearer {ada}")[0] == 200


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"identity_header": HEADER}, "give both or none"),
        ({"trusted_proxies": "10.0.0.1"}, "give both or none"),
        ({**TRUSTED, "trusted_proxies": "0.0.0.0/0"}, "is everybody"),
        ({**TRUSTED, "trusted_proxies": "proxy"}, "trusted_proxies"),
        ({**TRUSTED, "identity_header": "Authorization"}, "another meaning"),
        ({**TRUSTED, "identity_header": "X Y"}, "is not a header"),
    ],
)
def test_settings_that_would_open_the_door_are_refused(changes, words):
    """One sentence each."""
    with pytest.raises(SettingsError, match=words):
        check(Settings(**changes))
