"""The form of a runbook."""


def assert_runbook(page: str, name: str) -> None:
    """The alert's name, what it means, what to look at and what to do, in this order."""
    assert page.splitlines()[0] == f"# {name}"
    positions = [
        page.find(heading)
        for heading in ("## What it means", "## What to look at", "## What to do")
    ]
    assert -1 not in positions
    assert positions == sorted(positions)
