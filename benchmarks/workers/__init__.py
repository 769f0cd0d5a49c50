"""One process for each system under measurement, so that none shares a heap, a thread pool or a library with another.

A worker reads one JSON object a line from its input (`{"requests": [{"prompt": [ids], "max_tokens": n}], "reuse": bool,
"parallel": bool}`), does the work greedily without stopping early, and answers `{"seconds": s, "tokens": generated}`.
It imports nothing of Branchpoint (but the one that measures it), for a peer has an interpreter of its own.
"""
