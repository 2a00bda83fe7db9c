"""
What options of other sources and sinks are called here, for who comes from them.

Names are those of Spark's own Kafka source and sink, of Databricks' Kinesis source, and of awslabs'
Kinesis connector without its ``kinesis.``; in lower case, as Spark hands them on.
"""

from __future__ import annotations

_POLLED = "is not needed: tasks poll, and share a shard's 2 MB/s with other pollers"
_CHAIN = "is not there: the default credential chain, profile, accessKeyId or roleArn gives keys"
_POSITIONS = "is not needed: a query keeps its positions itself, and publishTo shows them"
_SDK = "is not needed: the SDK tries again by itself"

HERE = {
    # Which stream, where, as whom
    "streamname": "is stream here",
    "streamarn": "is stream here",
    "subscribe": "is stream here, the name of one stream",
    "subscribepattern": "is stream here, the name of one stream",
    "assign": "is stream here, and shards where a table is read",
    "topic": "is stream here",
    "bootstrap.servers": "is region here, or endpoint for an address of one's own",
    "kinesisregion": "is region here",
    "endpointurl": "is endpoint here",
    "stsendpoint": "is endpoint here, for STS, too",
    "stsendpointurl": "is endpoint here, for STS, too",
    "stsrolearn": "is roleArn here",
    "stssessionname": "is roleSessionName here",
    "awsaccesskey": "is accessKeyId here",
    "awsaccesskeyid": "is accessKeyId here",
    "awssecretkey": "is secretAccessKey here",
    "credentialproviderclass": _CHAIN,
    "servicecredential": _CHAIN,
    # Where to begin and to end
    "initialposition": "is startingPosition here: LATEST, TRIM_HORIZON, an instant",
    "startingoffsets": "is startingPosition here: LATEST, TRIM_HORIZON, an instant, or by shard",
    "startingtimestamp": "is startingPosition here, an instant",
    "startingoffsetsbytimestamp": "is startingPosition here, an instant, or by shard",
    "startingoffsetsbytimestampstrategy": "is not needed: an instant is always found",
    "endingoffsets": "is endingPosition here, where a table is read",
    "endingtimestamp": "is endingPosition here, an instant",
    "endingoffsetsbytimestamp": "is endingPosition here, an instant",
    # How much, how often
    "maxoffsetspertrigger": "is maxRecordsPerBatch here",
    "minoffsetspertrigger": "is not there: the trigger says how often",
    "maxtriggerdelay": "is not there: the trigger says how often",
    "minpartitions": "is partitions here",
    "maxpartitions": "is partitions here",
    "maxrecordsperpartition": "is maxRecordsPerShard or maxBytesPerPartition here",
    "shardspertask": "is shardsPerPartition here",
    "maxfetchrecordspershard": "is maxRecordsPerShard here",
    "maxfetchtimepershardsec": "is maxFetchTime here, with a unit",
    "maxfetchduration": "is maxFetchTime here",
    "maxfetchrate": "is pollInterval and maxBytesPerPartition here",
    "minfetchperiod": "is pollInterval here",
    "fetchbuffersize": "is maxBytesPerPartition here: no executor holds more",
    "maxrecordsperfetch": "is recordsPerRead here",
    "getrecords.numberofrecordsperfetch": "is recordsPerRead here",
    "getrecords.fetchintervalms": "is pollInterval here, with a unit",
    "checknewrecordthreads": "is probeInterval and probesPerSecond here",
    "describeshardinterval": "is discoveryInterval here",
    "shardfetchinterval": "is discoveryInterval here",
    "maxshardsperdescribe": "is not needed: pages are as large as Kinesis makes them",
    "coalescethresholdblocksize": "is not needed: a task's shards are one partition",
    "coalescebinsize": "is not needed: a task's shards are one partition",
    # What is kept, and trying again
    "metadatacommittertype": "is sealStore here",
    "metadatapath": "is sealStore here",
    "dynamodb.tablename": "is sealStore here, dynamodb:TABLE",
    "minbatchestoretain": "is sealsRetained here",
    "fetchoffset.numretries": "is retryAttempts here",
    "fetchoffset.retryintervalms": "is retryFirst here, with a unit",
    "clientnumretries": "is retryAttempts here",
    "clientretryintervalsms": "is retryFirst here, with a unit",
    "clientmaxretryintervalms": "is maxRetryPause here, with a unit",
    "metadatanumretries": _SDK,
    "metadataretryintervalsms": _SDK,
    "metadatamaxretryintervalms": _SDK,
    # Consumers that others see
    "group.id": _POSITIONS,
    "groupidprefix": _POSITIONS,
    "includeheaders": "is not needed: a Kinesis record has none",
    "consumermode": _POLLED,
    "consumertype": _POLLED,
    "consumername": _POLLED,
    "consumernameprefix": _POLLED,
    "consumerrefreshinterval": _POLLED,
    "registeredconsumerid": _POLLED,
    "registeredconsumeridtype": _POLLED,
    "requireconsumerderegistration": _POLLED,
    # The sink
    "sink.aggregationenabled": "is aggregate here",
    "sink.recordttl": "is giveUpAfter here",
    "sink.flushwaittimems": "is not needed: a task sends its rows and waits for them",
    "sink.recordmaxbufferedtimems": "is not needed: a task sends its rows and waits for them",
    "sink.maxconnections": "is not needed: a task sends its rows and waits for them",
}
"""Another connector's name, in lower case, to what it is here."""


def said_of(name: str) -> str:
    """Return what an option of another connector is here; empty if it is none that is known."""
    return HERE.get(name.removeprefix("kinesis.").removeprefix("kafka."), "")
