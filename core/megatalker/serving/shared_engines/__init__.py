"""What adapters to voice-agent frameworks share: engines of a process, or a server's, for many conversations."""
