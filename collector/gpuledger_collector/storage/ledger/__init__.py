"""The ledger: usage, capacity, owners, and the charges that follow from them."""
