"""What is done: the ledger, and every write that it allows."""
