"""What runs beside the model: capture, checksums and engine adapters, in the user's own environment."""

__version__ = "0.1.0"
