"""What readings mean: features, rules, silence, risk. Imports nothing of ``daemon``."""
