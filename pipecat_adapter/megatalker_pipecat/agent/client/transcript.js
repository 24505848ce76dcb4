// What was said, as it is said: the user's words on the right, the agent's on the left with those still to come paler.

export class Transcript {
  constructor(place) {
    this.place = place;
    this.segments = new Map();
    this.hearing = null;
  }

  user(words, final) {
    this.hearing ??= this.#line("user");
    this.hearing.textContent = words;
    this.hearing.classList.toggle("interim", !final);
    if (final) this.hearing = null;
    this.#scroll();
  }

  agent(segment) {
    const id = segment.segment_id ?? segment.text;
    if (!this.segments.has(id)) {
      const line = this.#line("agent");
      line.append(document.createElement("span"), Object.assign(document.createElement("span"), { className: "coming" }));
      this.segments.set(id, line);
    }
    const [spoken, coming] = this.segments.get(id).children;
    if (segment.spoken_status === "completed" || !segment.will_be_spoken) {
      [spoken.textContent, coming.textContent] = [segment.text, ""];
    } else {
      spoken.textContent = segment.spoken_progress?.accumulated_text ?? "";
      coming.textContent = segment.spoken_progress?.remaining_text ?? segment.text;
    }
    this.#scroll();
  }

  interrupted() {
    for (const line of this.segments.values()) if (line.lastChild.textContent) line.classList.add("cut");
    this.segments.clear();
  }

  #line(who) {
    const line = Object.assign(document.createElement("p"), { className: who });
    this.place.append(line);
    return line;
  }

  #scroll() {
    this.place.scrollTop = this.place.scrollHeight;
  }
}
