"""Sources: one file per thing that is read. Imports nothing of ``models`` or ``daemon``."""
