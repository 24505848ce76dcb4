// The page: what to say and how, its panels one after the other, stop, and the one line that says how things are.

import { Panel } from "./panel.js";
import { unlock } from "./player.js";
import { KeyError, Server } from "./server.js";
import { offerCloning } from "./voice_form.js";

const $ = (id) => document.getElementById(id);
const WARM_UP_POLL_MS = 2000;

const server = new Server(new URL(".", location.href));
const [first, second] = ["First voice", "Second voice"].map((name) => {
  const panel = new Panel(name, server, {
    failed,
    admitted: start,
    again: () => run([panel], (_panel, signal) => panel.playAgain(signal)),
  });
  $("panels").append(panel.element);
  return panel;
});
second.offerOtherServers();
second.element.hidden = true;

/** What runs now; aborting it stops sound and server. */
let running = null;

function say(words, state = "calm") {
  $("status").textContent = words;
  $("status").dataset.state = state;
}

function failed(error) {
  say(error.message, error instanceof KeyError && !error.refused ? "calm" : "failed");
}

function stop() {
  running?.abort();
  if (running) say("Stopped.");
  ended();
}

function ended() {
  running = null;
  if (document.activeElement === $("stop")) $("speak").focus();
  $("stop").hidden = true;
}

/** Do this with each of the panels in turn, so that each has loudspeaker and server to itself. */
async function run(panels, work) {
  stop();
  const own = (running = new AbortController());
  $("stop").hidden = false;
  say("Speaking …");
  try {
    await unlock();
    for (const panel of panels) {
      if (own.signal.aborted) return;
      await work(panel, own.signal);
    }
    if (own.signal.aborted) return;
    say("All is said.");
  } catch (error) {
    if (own.signal.aborted) return;
    failed(error);
  }
  ended();
}

function speak() {
  const request = {
    text: $("text").value,
    language: $("language").value || null,
    seed: $("seed").value ? Number($("seed").value) : crypto.getRandomValues(new Uint32Array(1))[0],
  };
  if ($("instruct").value.trim()) request.instruct = $("instruct").value;
  run($("compare").checked ? [first, second] : [first], (panel, signal) => panel.speak(request, signal));
}

function introduce(model) {
  const { value } = $("language");
  $("language").replaceChildren(...model.languages.map((name) => new Option(name[0].toUpperCase() + name.slice(1), name)));
  if (model.languages.includes(value)) $("language").value = value;
  $("manner").hidden = !model.follows_instructions;
  offerCloning(server, model, { say, failed, added: (name) => Promise.all([first.load(name), second.load()]) });
}

async function watchHealth(checkpoint) {
  const { status, backend, codec } = await server.health();
  $("about").textContent = `${checkpoint} · backend ${backend} · codec ${codec} · ${status}`;
  if (status === "warming up") setTimeout(() => watchHealth(checkpoint).catch(failed), WARM_UP_POLL_MS);
}

async function start() {
  const before = $("status").textContent;
  try {
    await first.load();
    const model = await server.model();
    introduce(model);
    await Promise.all([second.load(), watchHealth(model.id)]);
    if ($("status").textContent === before) say(""); // what somebody did meanwhile has its own words
  } catch (error) {
    failed(error);
  }
}

$("speech").onsubmit = (event) => {
  event.preventDefault();
  speak();
};
$("stop").onclick = stop;
$("compare").onchange = () => (second.element.hidden = !$("compare").checked);
$("text").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("speech").requestSubmit();
};
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});

start();
