"""Who may use each operation of the API, and a request of each that is complete but for who sends
it.
"""

from fakes.two_teams import OWN as OWN_TEAM
from fakes.two_teams import ROLES, day

DAYS = f"from={day(-4)}&to={day(-1)}"
OPEN, SIGNED, REPORTING, OWN, FLEET, ADMIN = (
    "open",
    "signed",
    "reporting",
    "own part",
    "whole fleet",
    "admin",
)
ANY_NODE = "reporting of any node"
RULES = {
    "GET /healthz": OPEN,
    "GET /readyz": OPEN,
    "GET /metrics": OPEN,
    "GET /v1/budgets/ack": SIGNED,
    "POST /v1/budgets/ack": SIGNED,
    "GET /v1/notifications/ack": SIGNED,
    "POST /v1/notifications/ack": SIGNED,
    "POST /v1/batches": REPORTING,
    "POST /api/v1/write": ANY_NODE,
    "POST /v1/queue": REPORTING,
    "POST /v1/inference": ANY_NODE,
    "POST /v1/runs/{workload}/progress": REPORTING,
    "GET /v1/chargeback": OWN,
    "GET /v1/budgets": OWN,
    "GET /v1/idle": OWN,
    "GET /v1/anomalies": OWN,
    "GET /v1/recommendations": OWN,
    "GET /v1/runs": OWN,
    "GET /v1/inference": OWN,
    "GET /v1/series": OWN,
    "GET /v1/disputes": OWN,
    "POST /v1/disputes": OWN,
    "GET /v1/disputes/{number}": OWN,
    "POST /v1/disputes/{number}/answers": OWN,
    "POST /v1/disputes/{number}/resolution": FLEET,
    "POST /v1/disputes/{number}/preview": FLEET,
    "GET /v1/accelerators": FLEET,
    "GET /v1/nodes": FLEET,
    "GET /v1/forecast": FLEET,
    "GET /v1/forecast/history": FLEET,
    "GET /v1/queues": FLEET,
    "GET /v1/queues/quotas": FLEET,
    "GET /v1/queues/evictions": FLEET,
    "GET /v1/scaling/{pool}": FLEET,
    "GET /v1/samples": FLEET,
    "GET /v1/audit": ADMIN,
}
"""Who may use each operation. A new one stands here before it is served."""
REFUSED = {
    OPEN: set(),
    SIGNED: {None, *ROLES},
    REPORTING: {None, "viewer", "finance", "admin"},
    OWN: {None, "agent"},
    ANY_NODE: {None, *ROLES},
    FLEET: {None, "agent", "viewer"},
    ADMIN: {None, "agent", "viewer", "finance"},
}
BODIES = {
    "/v1/disputes": {"owner": {"team": OWN_TEAM}, "from": day(-9), "to": day(-8), "reason": "x"},
    "/v1/disputes/{number}/answers": {"note": "x"},
    "/v1/disputes/{number}/resolution": {"note": "x", "accept": False},
    "/v1/disputes/{number}/preview": {"to": {}},
    "/v1/runs/{workload}/progress": {"steps": 1},
}


def address(path: str) -> str:
    """A path of the description with its parameters filled in, none of which names anything that
    there is.
    """
    query = DAYS + "&budget=1&period=1&notification=1&expires=9999999999999&mac=x"
    return (
        path.replace("{pool}", "x").replace("{number}", "99").replace("{workload}", "x")
        + f"?{query}"
    )
