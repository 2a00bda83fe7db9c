"""
The embedded AWS: a whole account on the loopback interface, for development, tests and the demo.

`EmbeddedAws` starts it, `deploy` puts a synthesized cloud assembly into it, `serve` leaves it
running. Nothing here is part of the Lambda layer's asset.

It is ministack with our Kinesis engine and the corrections that each module's PATCHES name. What it
does not do: functions run the local interpreter whatever their Runtime says, with the local
environment in place of packages in layers; their memory is not limited; a schedule's retry policy,
flexible window and dead-letter queue, and event source mappings of Kinesis streams, have no effect.
"""
