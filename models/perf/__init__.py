"""Engine speed: learned from what engines did (engine), asked for latencies (latency) and for capacity (capacity)."""
