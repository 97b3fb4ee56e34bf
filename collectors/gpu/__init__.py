"""What a GPU says: through NVML, nvidia-smi and DCGM."""
