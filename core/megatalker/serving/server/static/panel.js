// One voice that speaks: which, on which server, how it looks while it speaks, and its figures.

import { Connection } from "./connection.js";
import { SAMPLE_RATE } from "./packets.js";
import { Playback } from "./player.js";
import { KeyError, Server } from "./server.js";
import { Waveform } from "./waveform.js";

export class Panel {
  #own;
  #server;
  #connection;
  #waveform;
  #chunks = [];

  /**
   * @param {string} name of the panel, for those who do not see it
   * @param {Server} own the server that the page is from
   * @param {{failed: (error: Error) => void, admitted: () => void, again: () => void}} told
   */
  constructor(name, own, told) {
    this.element = document.getElementById("panel").content.firstElementChild.cloneNode(true);
    this.element.setAttribute("aria-label", name);
    this.#own = own;
    this.#waveform = new Waveform(this.#find("canvas"));
    this.#use(own);
    this.#find(".address").onchange = ({ target }) => {
      if (target.reportValidity()) this.#moveTo(target.value).catch(told.failed);
    };
    this.#find(".key").onchange = ({ target }) => {
      this.#server.key = target.value.trim();
      this.load().then(told.admitted, told.failed);
    };
    this.#find(".again").onclick = told.again;
  }

  /** Let its voice come from another server, too. */
  offerOtherServers() {
    this.#find(".other").hidden = false;
  }

  /** Read the server's voices. Keeps the choice, unless another is named. */
  async load(chosen = this.#find(".voice").value) {
    try {
      const voices = await this.#server.voices();
      const select = this.#find(".voice");
      select.replaceChildren(...voices.map(({ id, summary }) => new Option(summary ? `${id} (${summary})` : id, id)));
      if (!voices.length) select.append(new Option("none", ""));
      if (voices.some(({ id }) => id === chosen)) select.value = chosen;
      this.#askForKey(this.#server.key !== "");
    } catch (error) {
      if (error instanceof KeyError) this.#askForKey(true);
      throw error;
    }
  }

  /** Speak, and return when all was heard. @param {object} request fields of `open` besides the voice */
  async speak(request, signal) {
    this.#clear();
    const playback = this.#play(signal);
    let sentAt = 0;
    let arrived = 0;
    const told = {
      sent: () => (sentAt = performance.now()),
      opened: ({ backend, codec, seed }) =>
        (this.#find(".made-by").textContent = `backend ${backend} · codec ${codec} · seed ${seed}`),
      chunk: (samples) => {
        const elapsed = performance.now() - sentAt;
        if (!arrived) this.#show("first", elapsed / 1000, `${Math.round(elapsed)} ms`);
        arrived += samples.length;
        this.#show("rtf", elapsed / 1000 / (arrived / SAMPLE_RATE));
        this.#show("arrived", arrived, `${seconds(arrived)} s`);
        this.#chunks.push(samples);
        this.#waveform.add(samples);
        playback.push(samples);
      },
    };
    const voice = this.#find(".voice").value || null;
    try {
      await this.#connection.speak({ ...request, voice }, told, signal);
    } finally {
      playback.complete();
      await playback.over; // also what came before an error is heard
    }
    if (!signal.aborted) this.#find(".again").hidden = !arrived;
  }

  /** What was spoken last, once more. */
  async playAgain(signal) {
    const playback = this.#play(signal);
    for (const samples of this.#chunks) playback.push(samples);
    playback.complete();
    await playback.over;
  }

  #play(signal) {
    return new Playback(({ played, gaps, silence }) => {
      this.#waveform.played(played);
      this.#show("played", played, seconds(played));
      this.#show("gaps", gaps, gaps ? `${gaps} (${seconds(silence)} s)` : "none");
    }, signal);
  }

  #clear() {
    this.#chunks = [];
    this.#waveform.clear();
    for (const figure of this.element.querySelectorAll("data")) this.#show(figure.className, "", "–");
    this.#find(".made-by").textContent = "";
    this.#find(".again").hidden = true;
  }

  #show(figure, value, words = value.toFixed(2)) {
    Object.assign(this.#find(`.${figure}`), { value, textContent: words });
  }

  /** Each server's key has one place: that of the page's own server is the panel that stays with it. */
  #askForKey(asked) {
    const keptElsewhere = this.#server === this.#own && !this.#find(".other").hidden;
    this.#find(".access").hidden = !asked || keptElsewhere;
  }

  async #moveTo(address) {
    this.#use(address ? new Server(new URL(address.replace(/\/*$/, "/"))) : this.#own);
    this.#find(".voice").replaceChildren();
    this.#find(".key").value = this.#server.key;
    await this.load();
  }

  #use(server) {
    this.#connection?.close();
    this.#server = server;
    this.#connection = new Connection(server);
  }

  #find(selector) {
    return this.element.querySelector(selector);
  }
}

function seconds(samples) {
  return (samples / SAMPLE_RATE).toFixed(2);
}
