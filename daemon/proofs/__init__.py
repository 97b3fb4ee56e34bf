"""Proof before return, and the same probes on idle nodes."""
