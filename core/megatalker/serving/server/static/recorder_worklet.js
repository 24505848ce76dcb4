// Runs in the audio thread: hands on what the microphone hears.

const PIECE_SAMPLES = 4096;

class Recorder extends AudioWorkletProcessor {
  constructor() {
    super();
    this.piece = new Float32Array(PIECE_SAMPLES);
    this.filled = 0;
  }

  process([[heard]]) {
    if (!heard) return true; // not connected yet
    this.piece.set(heard, this.filled); // which divides into pieces: 128 samples at a time
    this.filled += heard.length;
    if (this.filled === PIECE_SAMPLES) {
      this.port.postMessage(this.piece);
      this.piece = new Float32Array(PIECE_SAMPLES);
      this.filled = 0;
    }
    return true;
  }
}

registerProcessor("recorder", Recorder);
