// The microphone into a WAV file. MediaRecorder's own formats are compressed, and not what servers of voices read.

import { wav } from "./wav.js";

/**
 * Record until `stop`, or for the longest time.
 * @param {number} longest seconds
 * @param {(seconds: number) => void} told how much there is
 * @returns {Promise<{stop: () => void, file: Promise<File>}>}
 */
export async function record(longest, told) {
  if (!navigator.mediaDevices) throw new Error("A browser gives the microphone only to https and to localhost; choose a file.");
  const plain = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, ...plain } }).catch((error) => {
    throw new Error(`There is no microphone: ${error.message}. Choose a file.`);
  });
  const context = new AudioContext();
  await context.audioWorklet.addModule(new URL("recorder_worklet.js", import.meta.url));
  const node = new AudioWorkletNode(context, "recorder", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
  const chunks = [];
  let samples = 0;
  node.port.onmessage = ({ data }) => {
    chunks.push(data);
    samples += data.length;
    told(samples / context.sampleRate);
    if (samples >= longest * context.sampleRate) stop();
  };
  context.createMediaStreamSource(stream).connect(node);
  let stop;
  const file = new Promise((done) => {
    stop = () => {
      for (const track of stream.getTracks()) track.stop();
      node.port.onmessage = null;
      context.close();
      done(new File([wav(chunks, context.sampleRate)], "recording.wav", { type: "audio/wav" }));
    };
  });
  return { stop, file };
}
