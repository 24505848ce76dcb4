// A call to the agent: one WebRTC connection, with RTVI messages on its data channel.

const PROTOCOL = "2.2.0";
const PING_MS = 1000; // the agent takes three seconds of silence for a lost client
const GATHER_MS = 3000;
const OFFER_MS = 30000;
export const LOOK_MS = 500;
export const LOST_LOOKS = 8; // so many looks at which nothing had arrived: the agent sends sound all the time, or silence

export const LOST = "The connection is lost: nothing arrives from the agent any more. It was stopped, or the network is down.";
export const AWAY = "The agent cannot be reached. It was stopped, or the network is down.";
const LEFT = "The agent ended the call.";

export class Call {
  /**
   * @param {MediaStreamTrack | null} microphone null: only listen
   * @param {{message: (type: string, data: object) => void, track: (stream: MediaStream) => void, ended: (why: string) => void}} told
   */
  constructor(microphone, told) {
    this.microphone = microphone;
    this.told = told;
    this.over = false;
  }

  /** @param {object} speakAs voice, language and backend that were chosen before */
  async open(speakAs) {
    const session = await post("/start", { transport: "webrtc", body: { speak_as: speakAs } });
    this.peer = new RTCPeerConnection({ iceServers: session.iceConfig?.iceServers ?? [] });
    this.peer.ontrack = (event) => this.told.track(event.streams[0] ?? new MediaStream([event.track]));
    this.peer.onconnectionstatechange = () => {
      if (this.peer.connectionState === "failed") this.close(LOST);
    };
    if (this.microphone) this.peer.addTransceiver(this.microphone, { direction: "sendrecv" });
    else this.peer.addTransceiver("audio", { direction: "recvonly" });
    this.channel = this.peer.createDataChannel("rtvi");
    this.channel.onopen = () => this.#begin();
    this.channel.onclose = () => this.close(LEFT);
    this.channel.onmessage = (event) => this.#receive(JSON.parse(event.data));
    await this.peer.setLocalDescription();
    await gathered(this.peer);
    const { sdp, type } = this.peer.localDescription;
    await this.peer.setRemoteDescription(await post(`/sessions/${session.sessionId}/api/offer`, { sdp, type }));
    this.#watch();
  }

  say(words) {
    this.#send("send-text", { content: words, options: { run_immediately: true, audio_response: true } });
  }

  stop() {
    this.#send("client-message", { t: "stop" });
  }

  speakAs(choice) {
    this.#send("client-message", { t: "speak-as", d: choice });
  }

  close(why = "") {
    if (this.over) return;
    this.over = true;
    clearInterval(this.pinging);
    clearInterval(this.watching);
    this.microphone?.stop();
    this.peer?.close();
    this.told.ended(why);
  }

  #begin() {
    this.pinging = setInterval(() => this.channel.send(`ping: ${Date.now()}`), PING_MS);
    this.channel.send(`ping: ${Date.now()}`);
    this.#send("client-ready", { version: PROTOCOL, about: { library: "megatalker-agent" } });
  }

  #watch() {
    let [before, looks] = [0, 0];
    this.watching = setInterval(async () => {
      const received = await packets(this.peer);
      looks = received === before ? looks + 1 : 0;
      before = received;
      if (looks >= LOST_LOOKS) this.close(LOST);
    }, LOOK_MS);
  }

  #send(type, data) {
    if (this.channel?.readyState !== "open") return;
    this.channel.send(JSON.stringify({ label: "rtvi-ai", type, id: crypto.randomUUID?.() ?? String(Math.random()), data }));
  }

  #receive(message) {
    if (message.label === "rtvi-ai") this.told.message(message.type, message.data ?? {});
    else if (message.message?.type === "peerLeft") this.close(LEFT);
  }
}

/** Sound, messages, and the checks of a connection that has neither yet. */
async function packets(peer) {
  let received = 0;
  for (const found of (await peer.getStats()).values()) {
    if (found.type === "candidate-pair") received += (found.bytesReceived ?? 0) + (found.responsesReceived ?? 0);
  }
  return received;
}

async function post(path, body) {
  const reply = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(OFFER_MS),
  }).catch(() => { throw new Error(AWAY); });
  if (!reply.ok) throw new Error(`The agent takes no call now: ${await reply.text()}`);
  return reply.json();
}

function gathered(peer) {
  return new Promise((done) => {
    if (peer.iceGatheringState === "complete") return done();
    setTimeout(done, GATHER_MS);
    peer.addEventListener("icegatheringstatechange", () => peer.iceGatheringState === "complete" && done());
  });
}
