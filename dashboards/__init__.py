"""Grafana dashboards as code: boards in Python, and the classic JSON that they make in `json/`."""
