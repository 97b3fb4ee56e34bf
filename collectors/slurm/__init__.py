"""What Slurm says of nodes and jobs. Reads only."""
