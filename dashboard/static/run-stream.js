// The stream of a run: opened again where it broke off, at the cursor, so that nothing is missed or repeated.
// A hidden page holds no stream (a browser allows six to a host): it catches up when it is looked at.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 5000;
const SILENCE_MS = 25000; // the server says something at least every 10 s

export class RunStream {
  #source = null;
  #timer = null;
  #watch = null;
  #wait = FIRST_WAIT_MS;

  // handlers: rows(message) -> false where the message does not follow; run(message); state(word)
  constructor(url, cursor, handlers) {
    this.url = url;
    this.cursor = cursor; // () -> number
    this.handlers = handlers;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#close() : this.#open()));
    addEventListener("pagehide", () => this.#close());
    addEventListener("pageshow", () => this.#open());
    this.#open();
  }

  #open() {
    if (this.#source || document.hidden) return;
    clearTimeout(this.#timer);
    this.handlers.state("connecting");
    const source = new EventSource(`${this.url}?after=${this.cursor()}`);
    this.#source = source;
    source.addEventListener("open", () => {
      this.#wait = FIRST_WAIT_MS;
      this.handlers.state("open");
      this.#heard();
    });
    source.addEventListener("rows", (event) => {
      this.#heard();
      if (!this.handlers.rows(JSON.parse(event.data))) this.#reopen();
    });
    source.addEventListener("run", (event) => {
      this.#heard();
      this.handlers.run(JSON.parse(event.data));
    });
    source.addEventListener("beat", () => this.#heard());
    source.addEventListener("error", () => this.#reopen());
  }

  #heard() {
    clearTimeout(this.#watch);
    this.#watch = setTimeout(() => this.#reopen(), SILENCE_MS);
  }

  #close() {
    clearTimeout(this.#timer);
    clearTimeout(this.#watch);
    this.#source?.close();
    this.#source = null;
  }

  #reopen() {
    this.#close();
    this.handlers.state("reconnecting");
    this.#timer = setTimeout(() => this.#open(), this.#wait * (0.75 + Math.random() / 2));
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
  }
}
