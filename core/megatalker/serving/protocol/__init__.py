"""Messages between server and client."""
