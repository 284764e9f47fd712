"""DHCPv4: the codec, and what is read from and put on the wire."""
