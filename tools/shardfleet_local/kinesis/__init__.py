"""
Kinesis Data Streams in memory, with the behaviour and the limits of the real one.

No emulator that can be had keeps records across a reshard *and* enforces shard limits, and this
project is about both. Closed shards keep their records and name their children, sequence numbers
look like AWS's, quotas throttle, iterators expire, retention trims, and faults happen on demand.
It is one idea, a service whole: one module per kind of operation around one engine.

    engine.py      KinesisEngine: operations as calls, on an injected clock (use it in tests)
    service.py     KinesisService.handle(headers, body), and ministack_handler for the launcher
    server.py      a stand-alone server: python -m shardfleet_local.kinesis --port 4567
    faults.py      what can be broken on purpose; over HTTP in admin.py
"""
