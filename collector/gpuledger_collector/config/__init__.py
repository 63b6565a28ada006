"""What people declare: rules, prices, budgets, pools, settings of notifications; read from files, applied and exported."""
