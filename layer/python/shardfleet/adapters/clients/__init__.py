"""The SDK's clients: how they are made, and what they used."""
