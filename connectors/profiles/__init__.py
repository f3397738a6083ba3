"""What was measured before a deployment serves: profile files, worker self-benchmarks, AI Configurator's tables."""
