"""``tocsin demo``: the whole head before a simulated cluster, in fast time, for eyes and tests."""
