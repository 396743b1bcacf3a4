// SPDX-License-Identifier: Apache-2.0
// One event stream for the whole page; its topics change with what the user is looking at.

export class Live {
  #source = null;
  #topics = "";
  #timer = null;

  constructor(onEvent, onState) {
    this.onEvent = onEvent;
    this.onState = onState;
    addEventListener("pagehide", () => this.#source?.close());
  }

  watch(topics) {
    const wanted = [...new Set(["cluster", ...topics])].join(",");
    if (wanted === this.#topics) return;
    this.#topics = wanted;
    this.#open();
  }

  #open() {
    clearTimeout(this.#timer);
    this.#source?.close();
    const source = new EventSource(`api/events?topics=${encodeURIComponent(this.#topics)}`);
    this.#source = source;
    source.onopen = () => this.onState("live");
    source.onerror = () => {
      this.onState("lost");
      // The browser reconnects on its own unless the stream was rejected.
      if (source.readyState === EventSource.CLOSED) this.#timer = setTimeout(() => this.#open(), 2000);
    };
    // An event has the name of its topic's kind, which is the part before the first colon.
    for (const kind of new Set(this.#topics.split(",").map((topic) => topic.split(":")[0]))) {
      source.addEventListener(kind, (event) => { if (source === this.#source) this.onEvent(kind, JSON.parse(event.data)); });
    }
  }
}
