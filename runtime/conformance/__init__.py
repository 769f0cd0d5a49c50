"""`branchpoint conformance`: what real clients expect of a server, asked through those clients.

A `Check` is a function of a `Server`; its name and docstring say what it holds. `catalogue` lists them all, `report` runs them.
The modules between are one client, or one part of OpenAI's API, each. Clients are imported when a check needs them.
"""
