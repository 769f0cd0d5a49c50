"""`branchpoint bench`: how fast a server, or an engine in this process, is under a load of one's own.

`workload` makes `Session`s of `Ask`s from `WorkloadOptions`; `client` sends them to a server and gives a `Timing` for each ask,
`local` runs them on an engine; `figures` makes percentiles and a table of the timings, `plot` a picture.
"""
