"""What people declare: rules, prices, budgets, pools, settings of notifications; read applied and exported."""
