"""The agent of a compute node: its cycle, its spool, its way to the head."""
