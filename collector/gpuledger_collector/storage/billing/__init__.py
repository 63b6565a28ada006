"""What it costs: prices and other declarations, charges, budgets, closed periods, bills, disputes."""
