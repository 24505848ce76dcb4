// One server over HTTP: what it serves, new voices, and tokens. Every error says in words what is wrong.

/** The server asks for an API key, or refuses the one it was given. */
export class KeyError extends Error {
  /** @param {boolean} refused it was given one */
  constructor(host, refused) {
    super(refused ? `The server ${host} refuses this API key.` : `The server ${host} asks for an API key.`);
    this.refused = refused;
  }
}

export class Server {
  /** @param {URL} base where the server's paths begin */
  constructor(base) {
    this.base = base;
    this.key = ""; // kept nowhere else, and sent in a header only
  }

  async model() {
    return (await this.#ask("v1/models")).data[0];
  }

  async voices() {
    return (await this.#ask("v1/voices")).data;
  }

  /** @param {FormData} form name, reference, and maybe transcript */
  async addVoice(form) {
    return this.#ask("v1/voices", { method: "POST", body: form });
  }

  /** The state of the server, also where it is not ready. */
  async health() {
    return (await this.#fetch("health")).json();
  }

  /** An open WebSocket. Where the server asks for a key, a token opens it: a key would have to stand in the URL. */
  async connect() {
    const subprotocols = this.key ? (await this.#ask("v1/tokens", { method: "POST" })).subprotocols : [];
    const url = new URL("v1/speak", this.base);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url, subprotocols);
    socket.binaryType = "arraybuffer";
    await new Promise((opened, failed) => {
      socket.onopen = opened;
      socket.onerror = () => failed(this.#unreachable());
    });
    return socket;
  }

  async #ask(path, options = {}) {
    const response = await this.#fetch(path, options);
    if (response.ok) return response.json();
    if (response.status === 401) throw new KeyError(this.base.host, this.key !== "");
    const told = await response.json().catch(() => null);
    throw new Error(told?.error?.message ?? `The server ${this.base.host} answered ${response.status}.`);
  }

  async #fetch(path, options = {}) {
    const headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
    try {
      return await fetch(new URL(path, this.base), { ...options, headers });
    } catch {
      throw this.#unreachable();
    }
  }

  #unreachable() {
    const foreign = this.base.origin !== location.origin;
    const hint = foreign ? ` It must run, and allow this page: allowed_origins = ["${location.origin}"].` : " Is it running?";
    return new Error(`The server ${this.base.host} does not answer.${hint}`);
  }
}
