"""HTTP without the SDK: kept connections and signatures."""
