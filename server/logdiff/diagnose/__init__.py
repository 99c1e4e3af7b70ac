"""From a mismatch to its cause on live engines: what is asked next, within limits of time and engine starts."""
