"""One file per group of operator families; `catalogue` knows them all."""
