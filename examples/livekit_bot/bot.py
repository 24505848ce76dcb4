"""A voice agent on LiveKit that speaks with Qwen3-TTS, made in this process by megatalker.

Speech to text and the language model come from OpenAI or from anything with its API (OPENAI_API_KEY, OPENAI_BASE_URL).
MEGATALKER_* variables or a megatalker.toml choose checkpoint and backend.

    python bot.py console     # talk to it in the terminal
    python bot.py dev         # join rooms: LIVEKIT_URL, LIVEKIT_API_KEY, LIVEKIT_API_SECRET
"""

from livekit.agents import Agent, AgentServer, AgentSession, JobContext, JobExecutorType, JobProcess, cli
from livekit.plugins import openai

from megatalker_livekit import TTS

# Threads of one process share one engine. With processes, the framework's default, each job would load its own.
server = AgentServer(job_executor_type=JobExecutorType.THREAD)


def prewarm(process: JobProcess) -> None:
    """Runs before there is a job: the engine loads in the background."""
    process.userdata["tts"] = TTS(language="en")
    process.userdata["tts"].prewarm()


server.setup_fnc = prewarm


@server.rtc_session()
async def talk(context: JobContext) -> None:
    """One conversation."""
    session = AgentSession(stt=openai.STT(), llm=openai.LLM(), tts=context.proc.userdata["tts"])
    agent = Agent(instructions="You are a helpful assistant in a voice call. Answer in one or two plain sentences.")
    await session.start(agent, room=context.room)
    await session.say("Hello, how can I help?")


if __name__ == "__main__":
    cli.run_app(server)
