"""Prices, commitments, budgets, closed periods, bills and disputes."""
