// The WebSocket to one server (/v1/speak): utterances, each under an id of its own.

import { unpack } from "./packets.js";

export class Connection {
  #server;
  #socket = null;
  #utterances = new Map();
  #issued = 0;

  /** @param {import("./server.js").Server} server */
  constructor(server) {
    this.#server = server;
  }

  /**
   * Speak once. The socket is opened when it is first needed, and again after it was lost.
   * @param {object} request fields of the message `open`
   * @param {{sent: () => void, opened: (event: object) => void, chunk: (samples: Float32Array) => void}} told
   * @param {AbortSignal} signal cancels it in the server; nothing is told from then on
   * @returns {Promise<void>} when it is over; rejects with what went wrong, in words
   */
  async speak(request, told, signal) {
    if (this.#socket?.readyState !== WebSocket.OPEN) {
      const opened = await this.#server.connect();
      if (signal.aborted) return opened.close();
      this.#socket = this.#listen(opened);
    }
    const socket = this.#socket;
    const id = String(++this.#issued);
    const over = new Promise((done, failed) => this.#utterances.set(id, { ...told, signal, done, failed }));
    signal.addEventListener("abort", () => {
      if (this.#utterances.has(id)) socket.send(JSON.stringify({ type: "cancel", id }));
    });
    told.sent();
    socket.send(JSON.stringify({ type: "open", id, ...request }));
    return over;
  }

  close() {
    this.#socket?.close();
  }

  #listen(socket) {
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.#hear(JSON.parse(data)) : this.#play(data));
    socket.onerror = null;
    socket.onclose = ({ reason }) => {
      for (const { failed } of this.#utterances.values())
        failed(new Error(reason || "The connection to the server broke off before everything was said."));
      this.#utterances.clear();
    };
    return socket;
  }

  #play(message) {
    const { id, samples } = unpack(message);
    const utterance = this.#utterances.get(id);
    if (!utterance?.signal.aborted) utterance?.chunk(samples);
  }

  #hear(event) {
    if (event.type === "error" && event.id === null) return this.#refused(new Error(event.error.message));
    const utterance = this.#utterances.get(event.id);
    if (event.type === "opened" && utterance) {
      utterance.begun = true;
      if (!utterance.signal.aborted) utterance.opened(event);
    }
    if (event.type !== "done" && event.type !== "error") return;
    this.#utterances.delete(event.id);
    if (event.type === "error") utterance?.failed(new Error(event.error.message));
    else if (event.finish_reason !== "cancelled" && event.facts.unsaid_chars)
      utterance?.failed(new Error(`About ${event.facts.unsaid_chars} characters of the text were left out.`));
    else utterance?.done();
  }

  /** A message was refused without being told which: a `cancel` that came too late, or an `open`. */
  #refused(error) {
    for (const [id, { begun, failed }] of this.#utterances) {
      if (begun) continue;
      this.#utterances.delete(id);
      failed(error);
    }
  }
}
