"""Questions that people ask, a module each; the command line, HTTP and pages call them and only
format the answer.

Bill: `refresh` (fold and rate what is missing), `hourly_usage` (fold), `rating` (rate),
`chargeback`, `statement`, `what_if`, `close`, `reconciliation`, `provider_bill`, `tag_check`,
`dispute_preview`, `budget_status`. Waste and runs: `waste_receipt`, `run_report`, `node_health`,
`realized_savings` and the `recommendation_*` modules. Shared by several: `placements`,
`commitment_coverage`.
"""
