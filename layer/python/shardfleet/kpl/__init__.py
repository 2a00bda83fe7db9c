"""
Aggregated records: many user records inside one Kinesis record, in the format of the KPL.

``aggregate`` writes them, ``deaggregate`` reads them, ``hash_keys`` says where a record belongs,
``envelope`` frames them. Nothing is imported here: reading a plain record must not load protobuf.
"""
