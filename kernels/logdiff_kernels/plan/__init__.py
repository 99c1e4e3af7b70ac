"""Plans of the NPU kernels: tiles, work tables, budgets and a cost model, as pure functions of shapes and dtypes."""
