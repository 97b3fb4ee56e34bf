"""What the kernel says: its log, and what rasdaemon kept of it."""
