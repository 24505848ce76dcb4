// Runs in the audio thread: plays samples in the order in which they come, and counts where it ran dry.

const REPORT_SAMPLES = 1200; // 50 ms

class Player extends AudioWorkletProcessor {
  constructor() {
    super();
    this.chunks = [];
    this.offset = 0; // into the first chunk
    this.played = this.gaps = this.silence = this.reported = 0;
    this.dry = 0; // samples of silence since it last played; a gap only if more sound follows
    this.complete = false; // nothing more comes
    this.over = false;
    this.port.onmessage = ({ data }) => {
      if (data === "complete") this.complete = true;
      else if (data === "stop") this.over = true;
      else this.chunks.push(data);
    };
  }

  process(_inputs, [[output]]) {
    if (this.over) return false;
    let filled = 0;
    while (filled < output.length && this.chunks.length) filled += this.#take(output, filled);
    if (this.played && filled < output.length) this.dry += output.length - filled;
    this.over = this.complete && !this.chunks.length;
    if (this.over || this.played - this.reported >= REPORT_SAMPLES || (this.dry && this.reported < this.played)) {
      this.reported = this.played;
      const { played, gaps, silence, over } = this;
      this.port.postMessage({ played, gaps, silence, over });
    }
    return !this.over;
  }

  #take(output, at) {
    const piece = this.chunks[0].subarray(this.offset, this.offset + output.length - at);
    if (this.dry) {
      this.gaps += 1;
      this.silence += this.dry;
      this.dry = 0;
    }
    output.set(piece, at);
    this.offset += piece.length;
    this.played += piece.length;
    if (this.offset === this.chunks[0].length) {
      this.chunks.shift();
      this.offset = 0;
    }
    return piece.length;
  }
}

registerProcessor("player", Player);
