"""``WS /v1/realtime`` of the agent: OpenAI's Realtime protocol in front of its speech to text, model and speech."""
