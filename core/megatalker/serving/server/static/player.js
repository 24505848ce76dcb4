// From samples to the loudspeaker: one audio context for the page, one node of player_worklet.js for each utterance.

import { SAMPLE_RATE } from "./packets.js";

let context = null;
let loading = null;

/** Call it from a click or a key first: browsers let only those begin sound. */
export async function unlock() {
  context ??= new AudioContext({ sampleRate: SAMPLE_RATE, latencyHint: "interactive" });
  if (!context.audioWorklet) throw new Error("A browser plays streams only from https and from localhost; open the page there.");
  loading ??= context.audioWorklet.addModule(new URL("player_worklet.js", import.meta.url));
  await Promise.all([context.resume(), loading]);
}

export class Playback {
  #node;

  /** @param {(report: {played: number, gaps: number, silence: number, over: boolean}) => void} told in samples */
  constructor(told, signal) {
    this.#node = new AudioWorkletNode(context, "player", { numberOfInputs: 0, outputChannelCount: [1] });
    this.#node.connect(context.destination);
    /** Resolves when everything was played, or it was stopped. */
    this.over = new Promise((over) => {
      this.#node.port.onmessage = ({ data }) => {
        if (signal.aborted) return;
        told(data);
        if (data.over) over();
      };
      signal.addEventListener("abort", () => {
        this.#node.port.postMessage("stop");
        over();
      });
    }).finally(() => this.#node.disconnect());
  }

  push(samples) {
    this.#node.port.postMessage(samples);
  }

  /** Nothing more comes. */
  complete() {
    this.#node.port.postMessage("complete");
  }
}
