"""Streams text shards through an encoder into Qdrant, and keeps the collection in step with them."""

__version__ = "0.1.0"
