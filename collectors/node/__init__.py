"""The node itself: host, chassis, PCIe, NVMe."""
