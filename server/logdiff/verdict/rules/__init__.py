"""Rules of judgement over pair evidence, one file per kind of fault; each adds to a `Board`."""
