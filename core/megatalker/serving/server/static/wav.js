// A WAV file: 16-bit PCM, mono.

const HEADER_BYTES = 44;
const INFORMATION_BYTES = 20; // before the comment
const COMMENT = // as in megatalker/serving/audio.py; the last one or two characters are NUL
  "Synthetic speech, made by megatalker. Digital source type: " +
  "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia\0";

/** @param {Float32Array[]} chunks samples within [-1, 1] @returns {Blob} */
export function wav(chunks, sampleRate) {
  const samples = chunks.reduce((sum, chunk) => sum + chunk.length, 0);
  const comment = COMMENT.padEnd(COMMENT.length + (COMMENT.length % 2), "\0");
  const end = HEADER_BYTES + 2 * samples;
  const view = new DataView(new ArrayBuffer(end + INFORMATION_BYTES + comment.length));
  const text = (at, letters) => [...letters].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, view.byteLength - 8, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true); // bytes of the format
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, sampleRate, true);
  view.setUint32(28, 2 * sampleRate, true); // bytes a second
  view.setUint16(32, 2, true); // bytes of a sample
  view.setUint16(34, 16, true); // bits of a sample
  text(36, "data");
  view.setUint32(40, 2 * samples, true);
  let at = HEADER_BYTES;
  for (const sample of chunks.flatMap((chunk) => [...chunk])) {
    view.setInt16(at, Math.round(Math.max(-1, Math.min(1, sample)) * 32767), true);
    at += 2;
  }
  text(end, "LIST");
  view.setUint32(end + 4, INFORMATION_BYTES - 8 + comment.length, true);
  text(end + 8, "INFOICMT");
  view.setUint32(end + 16, comment.length, true);
  text(end + INFORMATION_BYTES, comment);
  return new Blob([view], { type: "audio/wav" });
}
