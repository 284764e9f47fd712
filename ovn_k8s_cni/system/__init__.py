"""What the kernel, OVSDB and child processes are asked for: one protocol a module."""
