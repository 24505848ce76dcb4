"""The engine on the network: an OpenAI-compatible HTTP route and a WebSocket, over one shared engine.

Read :mod:`~megatalker.serving.protocol.messages` and :mod:`~megatalker.serving.protocol.packets` for what goes over
the wire, and :mod:`~megatalker.serving.server.app` for what is served. Needs the extra ``server``.
"""
