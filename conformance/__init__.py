"""The plugin on real parts: kernel, OVS, DHCP servers, the dhcp daemon, cnitool; demo and benchmark."""
