"""The options of source and sink: typed, documented, checked."""
