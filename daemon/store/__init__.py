"""The embedded store: a synced spool, Parquet by the hour, and one SQLite file.

``embedded.Store`` writes (one process at a time); ``reader.Reader`` reads, in any process.
"""
