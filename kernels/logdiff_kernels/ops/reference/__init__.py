"""One fp64 reference per operator, in plain torch and independent of the kernels: what rounding is measured against."""
