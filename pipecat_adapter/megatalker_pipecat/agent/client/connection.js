// A call to the agent: one WebRTC connection, with RTVI messages on its data channel.

const PROTOCOL = "2.2.0";
const PING_MS = 1000; // the agent takes three seconds of silence for a lost client
const GATHER_MS = 3000;

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

  async open() {
    const session = await post("/start", { transport: "webrtc" });
    this.peer = new RTCPeerConnection({ iceServers: session.iceConfig?.iceServers ?? [] });
    this.peer.ontrack = (event) => this.told.track(event.streams[0] ?? new MediaStream([event.track]));
    this.peer.onconnectionstatechange = () => {
      if (this.peer.connectionState === "failed") this.close("the connection failed");
    };
    if (this.microphone) this.peer.addTransceiver(this.microphone, { direction: "sendrecv" });
    else this.peer.addTransceiver("audio", { direction: "recvonly" });
    this.channel = this.peer.createDataChannel("rtvi");
    this.channel.onopen = () => this.#begin();
    this.channel.onclose = () => this.close("the agent hung up");
    this.channel.onmessage = (event) => this.#receive(JSON.parse(event.data));
    await this.peer.setLocalDescription();
    await gathered(this.peer);
    const { sdp, type } = this.peer.localDescription;
    await this.peer.setRemoteDescription(await post(`/sessions/${session.sessionId}/api/offer`, { sdp, type }));
  }

  say(words) {
    this.#send("send-text", { content: words, options: { run_immediately: true, audio_response: true } });
  }

  close(why = "") {
    if (this.over) return;
    this.over = true;
    clearInterval(this.pinging);
    this.microphone?.stop();
    this.peer?.close();
    this.told.ended(why);
  }

  #begin() {
    this.pinging = setInterval(() => this.channel.send(`ping: ${Date.now()}`), PING_MS);
    this.channel.send(`ping: ${Date.now()}`);
    this.#send("client-ready", { version: PROTOCOL, about: { library: "megatalker-agent" } });
  }

  #send(type, data) {
    this.channel.send(JSON.stringify({ label: "rtvi-ai", type, id: crypto.randomUUID?.() ?? String(Math.random()), data }));
  }

  #receive(message) {
    if (message.label === "rtvi-ai") this.told.message(message.type, message.data ?? {});
    else if (message.message?.type === "peerLeft") this.close("the agent hung up");
  }
}

async function post(path, body) {
  const reply = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  if (!reply.ok) throw new Error(`${path} answered ${reply.status}: ${await reply.text()}`);
  return reply.json();
}

function gathered(peer) {
  return new Promise((done) => {
    if (peer.iceGatheringState === "complete") return done();
    setTimeout(done, GATHER_MS);
    peer.addEventListener("icegatheringstatechange", () => peer.iceGatheringState === "complete" && done());
  });
}
