// A new voice for the server: a recording, from a file or from the microphone, and what is said in it.

import { record } from "./recorder.js";

const $ = (id) => document.getElementById(id);
const LONGEST_S = 15;

/**
 * Offer the form where the checkpoint can clone; say why where it cannot.
 * @param {{say: (words: string) => void, failed: (error: Error) => void, added: (name: string) => Promise<unknown>}} told
 */
export function offerCloning(server, model, told) {
  const clones = model.variant === "base";
  $("voice").hidden = !clones;
  $("cannot-add").hidden = clones;
  $("cannot-add").textContent = `Voices are cloned by Base checkpoints; ${model.checkpoint} has speakers of its own.`;
  $("reference").onchange = preview;
  $("record").onclick = () => recordReference(told).catch(told.failed);
  $("voice").onsubmit = (event) => {
    event.preventDefault();
    add(server, told).catch(told.failed);
  };
}

async function add(server, { say, added }) {
  const name = $("voice-name").value;
  const form = new FormData();
  form.append("name", name);
  form.append("reference", $("reference").files[0]);
  if ($("transcript").value.trim()) form.append("transcript", $("transcript").value);
  say(`Cloning ${name} …`);
  await server.addVoice(form);
  await added(name);
  $("voice").reset();
  preview();
  say(`${name} can speak now, and is chosen.`);
}

/** @type {ReturnType<typeof record> | null} */
let recording = null;

async function recordReference({ say }) {
  if (recording) return (await recording).stop();
  say("");
  recording = record(LONGEST_S, (seconds) => ($("record").textContent = `Stop recording (${Math.floor(seconds)} s)`));
  try {
    const files = new DataTransfer();
    files.items.add(await (await recording).file);
    $("reference").files = files.files;
    preview();
    say("Recorded.");
  } finally {
    recording = null;
    $("record").textContent = "Record";
  }
}

function preview() {
  const [file] = $("reference").files;
  URL.revokeObjectURL($("preview").src);
  $("preview").hidden = !file;
  if (file) $("preview").src = URL.createObjectURL(file);
  else $("preview").removeAttribute("src");
}
