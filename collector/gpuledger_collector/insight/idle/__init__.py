"""Idle accelerators: what every minute was, which usage intervals of them a person should see, and how sure that is."""
