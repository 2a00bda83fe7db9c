"""Services and layouts that Spark alone uses: columns, Arrow, seals, schema registries."""
