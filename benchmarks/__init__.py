"""Speed and memory against the peers, on the same work, in one run: `python -m benchmarks.NAME` (see docs/performance.md)."""
