"""Streams text shards through an encoder into Qdrant, and keeps the collection in step with them."""

import os

__version__ = "0.1.0"

# Threads of torch wait for each other at the end of each product. Left alone, libgomp has them turn in
# circles for milliseconds meanwhile; on a machine that does other work, too, that is time taken from the
# thread that is waited for. 1,000 turns are what libgomp takes where it knows of more threads than cores.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # read when torch is imported
