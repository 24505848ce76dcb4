// Binary messages of /v1/speak: one chunk of audio each. The layout is that of serving/protocol/packets.py.

export const SAMPLE_RATE = 24_000;
const VERSION = 1;
const SIGNED_16_BIT = 0;
const FINAL = 0x80;
const HEADER_BYTES = 20;
const FRAME_SAMPLES = 1920;

/** @returns {{id: string, samples: Float32Array}} samples within [-1, 1]; throws where it is no such message */
export function unpack(message) {
  const view = new DataView(message);
  if (message.byteLength < HEADER_BYTES || view.getUint8(0) !== VERSION || (view.getUint8(1) & ~FINAL) !== SIGNED_16_BIT)
    throw new Error("The server sends audio that this page does not know; reload the page.");
  const frames = view.getUint16(2, true);
  const idBytes = view.getUint16(18, true);
  const id = new TextDecoder().decode(new Uint8Array(message, HEADER_BYTES, idBytes));
  const begin = HEADER_BYTES + Math.ceil(idBytes / 4) * 4;
  const integers = new Int16Array(message, begin, frames * FRAME_SAMPLES);
  return { id, samples: Float32Array.from(integers, (sample) => sample / 32767) };
}
