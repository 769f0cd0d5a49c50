"""The HTTP side: requests are parsed once (`wire`, `fields`, `constraints`), become calls (`chat`, `completion`, `generate`,
`native`), and an `Answer` gives back what the engine says of them, as a `View` puts it.

`Gateway` admits requests and knows which are open, an `Exchange` holds the calls of one; `build_app` joins routes and key;
`Server` is the life of the process, `launch` starts it.
"""
