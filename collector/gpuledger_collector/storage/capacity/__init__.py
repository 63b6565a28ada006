"""Demand, queues, forecasts and scaling decisions."""
