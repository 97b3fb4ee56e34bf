"""The ways in which tocsin reads and writes Slurm; ``adapter.SlurmAdapter`` is the interface."""
