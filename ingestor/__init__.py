"""Streams text shards through an encoder into Qdrant, and keeps the collection in step with them."""

import os

__version__ = "0.1.0"

# Threads of torch wait for each other at the end of each product. Left alone, libgomp has them turn in
# circles for milliseconds meanwhile; on a machine that does other work, too, that is time taken from the
# thread that is waited for. 10,000 turns cost an idle machine little (docs/performance.md).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # read when torch is imported
