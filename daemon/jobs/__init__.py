"""What the jobs that run make of the GPUs they hold: use, energy, idleness, and why one is slow."""
