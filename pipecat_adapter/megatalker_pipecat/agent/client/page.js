// The page around a call: buttons, state, notices and figures.

import { Call } from "./connection.js";
import { Transcript } from "./transcript.js";

const $ = (id) => document.getElementById(id);
const transcript = new Transcript($("talk"));
let agent = null;
let call = null;
let failure = ""; // in this turn: why the agent hangs up, if it does

const NAMES = {
  offline: "not connected",
  connecting: "connecting",
  listening: "ready",
  hearing: "hearing you",
  thinking: "thinking",
  speaking: "speaking",
};

function show(state) {
  $("state").dataset.state = state;
  $("state").textContent = NAMES[state];
  const connected = !["offline", "connecting"].includes(state);
  $("words").disabled = $("send").disabled = !connected;
  $("words").placeholder = connected ? "Type something to say" : "Connect first";
  $("connect").disabled = agent === null || state === "connecting";
  $("connect").textContent = state === "offline" ? "Connect" : "Hang up";
  $("connect").classList.toggle("main", state === "offline");
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

const HEARD = {
  "bot-ready": () => { show("listening"); $("words").focus(); },
  "user-started-speaking": () => show("hearing"),
  "user-stopped-speaking": () => show("thinking"),
  "bot-llm-started": () => { failure = ""; show("thinking"); },
  "bot-started-speaking": () => show("speaking"),
  "bot-stopped-speaking": () => { if ($("state").dataset.state === "speaking") show("listening"); },
  "bot-interrupted": () => transcript.interrupted(),
  "user-input": (data) => transcript.user(data.text, data.final),
  "bot-output": (data) => transcript.agent(data),
  "error": (data) => { failure = data.error; notice(failure); if (!data.fatal) show("listening"); },
  "error-response": (data) => notice(data.error),
  "server-message": (data) => {
    if (data.type === "turn") figures(data);
    if (data.type === "backend" && data.kind === "talker") introduce({ ...agent, backend: data.backend });
  },
};

const SINCE = { speech: "you fell silent", text: "you sent it", agent: "the agent's cue" };

function figures(turn) {
  const stages = Object.entries(turn.stages_ms).map(([name, ms]) => `${name} +${Math.round(ms)}`).join(", ");
  const sound = turn.total_ms === null
    ? (turn.outcome === "cut" ? "cut before any sound" : "no sound")
    : `first sound ${Math.round(turn.total_ms)} ms after ${SINCE[turn.begun_by]}`;
  $("figures").textContent = sound;
  $("figures").title = `milliseconds since ${SINCE[turn.begun_by]}: ${stages}`;
}

async function microphone() {
  if (!agent.listens) return null;
  if (!navigator.mediaDevices) {
    notice("A browser gives the microphone only to https and to localhost. You can type instead.");
    return null;
  }
  try {
    const audio = { echoCancellation: true, noiseSuppression: true, autoGainControl: true };
    return (await navigator.mediaDevices.getUserMedia({ audio })).getAudioTracks()[0];
  } catch (error) {
    notice(`There is no microphone (${error.message}). You can type instead.`);
    return null;
  }
}

async function connect() {
  notice(failure = "");
  show("connecting");
  introduce(await whoIsThere().catch(() => agent));
  const track = await microphone();
  call = new Call(track, {
    message: (type, data) => HEARD[type]?.(data),
    track: (stream) => { $("speaker").srcObject = stream; },
    ended: (why) => { call = null; $("mute").hidden = true; if (why) notice(failure || why); show("offline"); },
  });
  $("mute").hidden = track === null;
  mute(false);
  try {
    await call.open();
  } catch (error) {
    call?.close(String(error.message));
  }
}

function mute(muted) {
  if (call?.microphone) call.microphone.enabled = !muted;
  $("mute").setAttribute("aria-pressed", muted);
  $("mute").textContent = muted ? "Unmute" : "Mute";
}

$("connect").onclick = () => (call ? call.close() : connect());
$("mute").onclick = () => mute($("mute").getAttribute("aria-pressed") === "false");
$("type").onsubmit = (event) => {
  event.preventDefault();
  const words = $("words").value.trim();
  if (words && call) { call.say(words); $("words").value = ""; }
};

async function whoIsThere() {
  return (await fetch("/agent")).json();
}

function introduce(found) {
  agent = found;
  const how = agent.answers ? "" : ", says what you type";
  $("about").textContent = `${agent.checkpoint}, ${agent.backend} backend${how}`;
}

try {
  introduce(await whoIsThere());
} catch {
  notice("The agent does not answer; reload the page when it runs.");
}
show("offline");
