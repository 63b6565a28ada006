"""Questions that people ask, a module for each area; the command line, HTTP, pages, assistants and
the schedule call them and only format the answer.

Bill: `refresh` (fold and rate what is missing), `hourly_usage` (fold), `rating` (rate),
`chargeback`, `bill_exports`, `statement`, `what_if`, `price_book`, `close`, `reconciliation`,
`provider_bill`, `tag_check`, `dispute_preview`. Budgets: `budget_status`, `budget_watch`.
Waste: `idle_search`, `anomaly_search`, `spending_watch` find it; `findings`, `receipts` list it;
`finding_notifications`, `acknowledgements`, `sent_messages`, `reclaim` are about whom it concerns.
Advice:
`recommendations`, `realized_savings` and the `recommendation_*` modules. Runs: `runs`,
`run_report`. Shared by several: `placements`, `commitment_coverage`.
"""
