// What was said, as it is said: the user's words on the right, the agent's on the left with those still to come paler.

const NEAR_PX = 40; // whoever has scrolled up farther reads, and is left alone

export class Transcript {
  /**
   * @param {HTMLElement} place scrolls
   * @param {(words: string) => void} announce told each sentence once, when it has been said or was cut
   */
  constructor(place, announce) {
    this.place = place;
    this.announce = announce;
    this.segments = new Map();
    this.hearing = null;
  }

  user(words, final) {
    this.#follow(() => {
      this.hearing ??= this.#line("user");
      this.hearing.textContent = words;
      this.hearing.classList.toggle("interim", !final);
      if (final) this.hearing = null;
    });
  }

  agent(segment) {
    this.#follow(() => {
      const id = segment.segment_id ?? segment.text;
      if (!this.segments.has(id)) {
        const line = this.#line("agent");
        line.append(document.createElement("span"), Object.assign(document.createElement("span"), { className: "coming" }));
        this.segments.set(id, line);
      }
      const line = this.segments.get(id);
      const [spoken, coming] = line.children;
      if (segment.spoken_status === "completed" || !segment.will_be_spoken) {
        [spoken.textContent, coming.textContent] = [segment.text, ""];
        this.#finish(line, `Agent: ${segment.text}`);
      } else {
        spoken.textContent = segment.spoken_progress?.accumulated_text ?? "";
        coming.textContent = segment.spoken_progress?.remaining_text ?? segment.text;
      }
    });
  }

  interrupted() {
    for (const line of this.segments.values()) {
      if (!line.lastChild.textContent) continue;
      line.classList.add("cut");
      this.#finish(line, `Agent, cut short: ${line.firstChild.textContent}`);
    }
    this.segments.clear();
  }

  #finish(line, words) {
    if (line.dataset.said) return;
    line.dataset.said = "yes";
    this.announce(words);
  }

  #line(who) {
    const line = Object.assign(document.createElement("p"), { className: who });
    this.place.append(line);
    return line;
  }

  #follow(change) {
    const below = this.place.scrollHeight - this.place.scrollTop - this.place.clientHeight;
    change();
    if (below < NEAR_PX) this.place.scrollTop = this.place.scrollHeight;
  }
}
