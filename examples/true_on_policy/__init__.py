"""A small GRPO on a CPU with the policy that sampled and the policy that learns kept equal to the bit."""
