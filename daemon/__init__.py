"""The services: agent, head, policy, Slurm, stores, alerts, page and the command line."""

__version__ = "0.1.0"
