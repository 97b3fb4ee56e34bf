"""The gateway: who may send, how much, and what is answered."""
