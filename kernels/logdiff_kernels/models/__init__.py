"""Small local models, made on this machine and cached outside the repository."""

from logdiff_kernels.models.build import build, catalogue

__all__ = ["build", "catalogue"]
