"""What is decided, purely: candidates, guards, caps, costs."""
