"""Where samples come from: nvml, dcgm, replay, simulated."""
