// The page around a call: buttons, state, notices and figures.

import { AWAY, Call } from "./connection.js";
import { Pickers } from "./pickers.js";
import { Transcript } from "./transcript.js";
import { welcome } from "./welcome.js";

const ASK_AGAIN_MS = 1000;

const $ = (id) => document.getElementById(id);
const transcript = new Transcript($("talk"), announce);
const pickers = new Pickers($("pickers"), (choice) => call?.speakAs(choice));
let agent = null; // what it told of itself; null: it does not answer
let call = null;
let failure = ""; // in this turn: why the agent hangs up, if it does
let first = ""; // said as soon as the agent is ready

const NAMES = {
  offline: "not connected",
  connecting: "connecting",
  listening: "ready",
  hearing: "hearing you",
  thinking: "thinking",
  speaking: "speaking",
};
const AT_WORK = ["thinking", "speaking"];

function state() {
  return $("state").dataset.state;
}

function show(next) {
  $("state").dataset.state = next;
  $("state").textContent = NAMES[next];
  const connected = !["offline", "connecting"].includes(next);
  $("type").hidden = $("stop").hidden = !connected;
  $("stop").disabled = !AT_WORK.includes(next);
  $("mute").hidden = !connected || !call?.microphone;
  $("connect").disabled = next === "connecting" || (next === "offline" && !agent?.ready);
  $("connect").textContent = next === "offline" ? "Start the call" : "Hang up";
  $("connect").classList.toggle("main", next === "offline");
  $("sample").disabled = next === "connecting";
}

/** The page's only live region: sentences, and what happens to the call. */
function announce(words) {
  $("announcer").textContent = words;
}

function notice(what, why = "") {
  $("what").textContent = what;
  $("why").textContent = why;
  $("notice").hidden = !what;
  if (what) announce(`${what} ${why}`);
}

const HEARD = {
  "bot-ready": begin,
  "user-started-speaking": () => show("hearing"),
  "user-stopped-speaking": () => show("thinking"),
  "bot-llm-started": () => { notice(failure = ""); show("thinking"); },
  "bot-started-speaking": () => show("speaking"),
  "bot-stopped-speaking": () => { if (state() === "speaking") show("listening"); },
  "bot-interrupted": () => { transcript.interrupted(); if (AT_WORK.includes(state())) show("listening"); },
  "user-input": (data) => { $("welcome").hidden = true; transcript.user(data.text, data.final); },
  "bot-output": (data) => { $("welcome").hidden = true; transcript.agent(data); },
  "error": (data) => { failure = data.error; notice("Something went wrong.", failure); if (!data.fatal) show("listening"); },
  "error-response": (data) => { pickers.revert(); notice("That was refused.", data.error); },
  "server-response": (data) => { if (data.t === "speak-as") taken(data.d); },
  "server-message": (data) => {
    if (data.type === "turn") figures(data);
    if (data.type === "backend" && data.kind === "talker") introduce({ ...agent, backend: data.backend });
  },
};

/** The agent speaks as was chosen. */
function taken(choice) {
  pickers.took(choice);
  if (choice.backend) introduce({ ...agent, backend: agent.backends[choice.backend] });
}

function begin() {
  show("listening");
  announce("Connected.");
  $("words").focus();
  if (first) call.say(first);
  first = "";
}

const SINCE = { speech: "you fell silent", text: "you sent it", agent: "the agent's cue" };

function figures(turn) {
  const stages = Object.entries(turn.stages_ms).map(([name, ms]) => `${name} +${Math.round(ms)} ms`).join(", ");
  const sound = turn.total_ms === null
    ? (turn.outcome === "cut" ? "cut before any sound" : "no sound")
    : `first sound ${Math.round(turn.total_ms)} ms after ${SINCE[turn.begun_by]}`;
  $("figures").hidden = false;
  $("figures").firstChild.textContent = sound;
  $("figures").lastChild.textContent = `since ${SINCE[turn.begun_by]}: ${stages}`;
}

async function microphone() {
  if (!agent.listens) return null;
  if (!navigator.mediaDevices) {
    notice("A browser gives the microphone only to https and to localhost.", "You can type instead.");
    return null;
  }
  try {
    const audio = { echoCancellation: true, noiseSuppression: true, autoGainControl: true };
    return (await navigator.mediaDevices.getUserMedia({ audio })).getAudioTracks()[0];
  } catch (error) {
    notice("There is no microphone. You can type instead.", error.message);
    return null;
  }
}

async function connect() {
  notice(failure = "");
  show("connecting");
  await find(); // it may have been started again, with other voices
  if (!agent?.ready) {
    first = "";
    return show("offline");
  }
  const track = await microphone();
  call = new Call(track, {
    message: (type, data) => HEARD[type]?.(data),
    track: (stream) => { $("speaker").srcObject = stream; },
    ended,
  });
  mute(false);
  try {
    await call.open(pickers.choice);
  } catch (error) {
    call?.close(String(error.message));
  }
}

function ended(why) {
  call = null;
  first = "";
  transcript.interrupted();
  if (failure) notice("The agent had to end the call.", failure);
  else if (why) notice(why);
  else announce("The call is over.");
  show("offline");
  find();
}

function mute(muted) {
  if (call?.microphone) call.microphone.enabled = !muted;
  $("mute").setAttribute("aria-pressed", muted);
}

function stop() {
  if (call && AT_WORK.includes(state())) call.stop();
}

$("connect").onclick = () => (call ? call.close() : connect());
$("mute").onclick = () => mute($("mute").getAttribute("aria-pressed") === "false");
$("stop").onclick = stop;
$("sample").onclick = () => {
  if (call) call.say($("sample").value);
  else { first = $("sample").value; connect(); }
};
$("type").onsubmit = (event) => {
  event.preventDefault();
  const words = $("words").value.trim();
  if (words && call) { call.say(words); $("words").value = ""; }
};
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });

function introduce(found) {
  agent = found;
  $("about").textContent = agent.ready ? `${agent.checkpoint}, ${agent.backend} backend` : ($("welcome").hidden ? agent.doing : "");
}

/** Ask the agent about itself, again and again until it is there and ready to be called. */
async function find() {
  const found = await fetch("/agent", { signal: AbortSignal.timeout(5 * ASK_AGAIN_MS) }).then((reply) => reply.json()).catch(() => null);
  if (call) return;
  const before = agent?.ready;
  if (found) {
    if ($("what").textContent === AWAY) notice("");
    introduce(found);
    if (found.ready) { pickers.offer(found); if (!before && $("notice").hidden) announce("Ready to be called."); }
  } else {
    agent = null;
    if ($("notice").hidden) notice(AWAY);
  }
  welcome(found, $);
  show(state());
  if (!found?.ready) setTimeout(find, ASK_AGAIN_MS);
}

show("offline");
find();
