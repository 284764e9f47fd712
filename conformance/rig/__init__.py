"""A node and a physical network in network namespaces, with real servers, made and removed by one `with`."""
