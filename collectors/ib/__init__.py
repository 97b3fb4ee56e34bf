"""InfiniBand from both ends: the node's ports, and the fabric's sweep."""
