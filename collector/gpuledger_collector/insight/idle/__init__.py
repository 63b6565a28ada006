"""Idle accelerators: what every minute was, which stretches of them a person should see, and how sure that is."""
