"""Training, checkpoints and records."""
