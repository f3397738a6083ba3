"""Pre-deployment profiles: interpolated (prefill, decode), and turned into iterations that a model learns (rows)."""
