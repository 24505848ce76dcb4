"""Speech over the network: one protocol, a server, a client."""
