"""Who asks, and what they may: one place that decides it for every route."""
