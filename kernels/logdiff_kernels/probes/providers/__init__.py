"""One file per provider; `catalogue` knows them all. A provider's package is imported by its own file alone."""
