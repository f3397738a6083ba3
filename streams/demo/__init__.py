"""The demonstration: a simulated deployment planned over a real bus, by separate processes, and watched."""
