"""Evidence: the case folder, its token table and the readers that fill it."""

from logdiff.case.case import Case, default_case_dir

__all__ = ["Case", "default_case_dir"]
