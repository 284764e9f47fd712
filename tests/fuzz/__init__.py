"""Coverage-guided fuzzing of the DHCP codec and client: `make fuzz`; see targets.py for what must hold."""
