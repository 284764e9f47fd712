"""Addresses: from the delegated dhcp plugin, onto the interface, and back to the server."""
