// Voice, language and backend: what the agent offers, what is chosen, and what is in force.

export class Pickers {
  /**
   * @param {HTMLElement} place holds one labelled select for each kind
   * @param {(choice: object) => void} chosen told of each choice
   */
  constructor(place, chosen) {
    this.place = place;
    this.chosen = chosen;
    this.inForce = {};
    place.onchange = (event) => this.chosen({ [event.target.name]: event.target.value });
  }

  /** Everything that is chosen, for a call that begins. */
  get choice() {
    return Object.fromEntries([...this.place.querySelectorAll("select")].map((select) => [select.name, select.value]));
  }

  /** Offer what `agent` (the answer of /agent) has; a kind with nothing to choose is left out. */
  offer(agent) {
    const before = this.choice;
    this.place.replaceChildren();
    for (const [kind, names] of Object.entries(agent.offered)) {
      if (names.length < 2) continue;
      const select = Object.assign(document.createElement("select"), { name: kind });
      select.append(...names.map((name) => new Option(agent.backends[name] ?? titled(name), name)));
      select.value = names.includes(before[kind]) ? before[kind] : agent.chosen[kind];
      const label = Object.assign(document.createElement("label"), { textContent: kind[0].toUpperCase() + kind.slice(1) });
      label.append(select);
      this.place.append(label);
    }
    this.inForce = this.choice;
  }

  /** The agent has taken a choice. */
  took(choice) {
    Object.assign(this.inForce, choice);
  }

  /** The agent has refused the last choice. */
  revert() {
    for (const select of this.place.querySelectorAll("select")) select.value = this.inForce[select.name];
  }
}

function titled(name) {
  return name === "auto" ? "Detect" : name[0].toUpperCase() + name.slice(1).replaceAll("_", " ");
}
