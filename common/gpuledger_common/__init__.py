"""What the agent and the collector both speak: the wire envelope, the metric catalogue, readings, the meter, health."""
