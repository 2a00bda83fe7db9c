"""`python -m shardfleet.local.kinesis --port N`."""

from shardfleet.local.kinesis.server import main

if __name__ == "__main__":
    main()
