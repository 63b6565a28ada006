"""Alert rules: `prometheus.yml` for Prometheus, and what Grafana evaluates on the ledger."""
