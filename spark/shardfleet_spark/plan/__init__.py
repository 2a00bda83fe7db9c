"""The driver's half: where a query begins and stands, and what it reads next."""
