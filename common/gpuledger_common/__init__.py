"""What the agent and the collector both speak: the wire envelope, the metric catalog, readings, the
meter, health.
"""
