"""The ledger of what was used: capacity, placements, usage, workloads, rules, and where days begin."""
