"""The engine on the network: an OpenAI-compatible HTTP route and a WebSocket, over one shared engine.

Read :mod:`~megatalker.server.messages` and :mod:`~megatalker.server.packets` for what goes over the wire, and
:mod:`~megatalker.server.app` for what is served. Needs the extra ``server``.
"""
