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
   * @param {AbortSignal} signal cancels it in the server
   * @returns {Promise<object>} the event `done`; rejects with what went wrong, in words
   */
  async speak(request, told, signal) {
    if (this.#socket?.readyState !== WebSocket.OPEN) this.#socket = this.#listen(await this.#server.connect());
    signal.throwIfAborted();
    const socket = this.#socket;
    const id = String(++this.#issued);
    const over = new Promise((done, failed) => this.#utterances.set(id, { ...told, done, failed }));
    signal.addEventListener("abort", () => {
      if (this.#utterances.has(id)) socket.send(JSON.stringify({ type: "cancel", id }));
    });
    told.sent();
    socket.send(JSON.stringify({ type: "open", id, ...request }));
    return over;
  }

  #listen(socket) {
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.#hear(JSON.parse(data)) : this.#play(data));
    socket.onerror = null;
    socket.onclose = () => {
      for (const { failed } of this.#utterances.values())
        failed(new Error("The connection to the server broke off before everything was said."));
      this.#utterances.clear();
    };
    return socket;
  }

  #play(message) {
    const { id, samples } = unpack(message);
    this.#utterances.get(id)?.chunk(samples);
  }

  #hear(event) {
    const utterance = this.#utterances.get(event.id);
    if (event.type === "opened") utterance?.opened(event);
    if (event.type !== "done" && event.type !== "error") return;
    this.#utterances.delete(event.id);
    if (event.type === "done") utterance?.done(event);
    else utterance?.failed(new Error(event.error.message));
  }
}
