"""What people are told, and by which way."""
