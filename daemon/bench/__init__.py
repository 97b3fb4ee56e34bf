"""What ``tocsin bench`` measures: each file one thing, against its peers in the same run."""
