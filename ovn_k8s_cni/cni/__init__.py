"""The CNI specification (1.1.0 and the versions before it back to 0.3.0) and nothing else."""
