"""Measurements of this machine: what ``tocsin bench`` prints. Each is a function."""
