// Draws speech as it arrives: pale what is still to be heard, in colour what was.

import { SAMPLE_RATE } from "./packets.js";

const BIN = 240; // samples that share one peak: 10 ms
const SHORTEST_S = 5;
const BAR_PX = 3;
const STEP_PX = 5;
const QUIETEST = 0.05; // a peak below this is not drawn as if it were loud
const CALM_MS = 500; // between two pictures for those who prefer less motion

export class Waveform {
  #canvas;
  #peaks = [];
  #left = new Float32Array(0);
  #played = 0;
  #scheduled = false;
  #calm = matchMedia("(prefers-reduced-motion: reduce)");

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.#draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  clear() {
    this.#peaks = [];
    this.#left = new Float32Array(0);
    this.played(0);
  }

  add(samples) {
    const all = new Float32Array(this.#left.length + samples.length);
    all.set(this.#left);
    all.set(samples, this.#left.length);
    const whole = all.length - (all.length % BIN);
    for (let at = 0; at < whole; at += BIN) this.#peaks.push(peak(all.subarray(at, at + BIN)));
    this.#left = all.subarray(whole);
    this.#schedule();
  }

  /** @param {number} samples heard so far */
  played(samples) {
    this.#played = samples;
    this.#schedule();
  }

  #schedule() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    const draw = () => {
      this.#scheduled = false;
      this.#draw();
    };
    if (this.#calm.matches) setTimeout(draw, CALM_MS);
    else requestAnimationFrame(draw);
  }

  #draw() {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    if (!width) return;
    this.#canvas.width = width * devicePixelRatio;
    this.#canvas.height = height * devicePixelRatio;
    const pen = this.#canvas.getContext("2d");
    pen.scale(devicePixelRatio, devicePixelRatio);
    const style = getComputedStyle(this.#canvas);
    const bars = Math.floor(width / STEP_PX);
    const binsPerBar = this.#span() / bars;
    const loudest = this.#peaks.reduce((most, one) => Math.max(most, one), QUIETEST);
    for (let bar = 0; bar < bars; bar++) {
      const bins = this.#peaks.slice(Math.floor(bar * binsPerBar), Math.ceil((bar + 1) * binsPerBar));
      const heard = (bar + 0.5) * binsPerBar * BIN < this.#played;
      const tall = Math.max(BAR_PX, (peak(bins) / loudest) * height);
      pen.fillStyle = style.getPropertyValue(!bins.length ? "--line" : heard ? "--accent" : "--coming");
      pen.beginPath();
      pen.roundRect(bar * STEP_PX, (height - tall) / 2, BAR_PX, tall, BAR_PX / 2);
      pen.fill();
    }
  }

  /** Bins across the picture: doubled when they are full, so that it seldom moves. */
  #span() {
    let span = (SHORTEST_S * SAMPLE_RATE) / BIN;
    while (span < this.#peaks.length) span *= 2;
    return span;
  }
}

function peak(values) {
  return values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}
