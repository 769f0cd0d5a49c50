"""Requests in, tokens out: the engine that schedules, runs the model and samples.

`messages` holds what travels: a `Call` or `ScoreCall` goes in, events come out, one terminal one for each call. `process` hosts
an `engine.Engine` in a thread or a process and answers with an `EngineClient`. Inside, a call becomes a `group.Group` of
`sequence.Sequence`s; the `scheduler.Scheduler` makes a `plan.StepPlan` of them with pages from `cache.KVCache`, a `plan.Runner`
(`runner.TorchRunner`) computes it, and `generation.Generation` turns its rows into tokens and final text.
"""
