// One redraw for however many changes: at most a few a second, in an animation frame, none while hidden or held.

const SHORTEST_MS = 250;

export class Redraw {
  #asked = false;
  #last = -Infinity;
  #held = false;

  constructor(draw) {
    this.draw = draw;
    document.addEventListener("visibilitychange", () => this.#plan());
  }

  ask() {
    if (this.#asked) return;
    this.#asked = true;
    this.#plan();
  }

  get held() {
    return this.#held;
  }

  hold(held) {
    this.#held = held;
    this.#plan();
  }

  #plan() {
    if (!this.#asked || this.#held || document.hidden) return;
    const wait = Math.max(0, this.#last + SHORTEST_MS - performance.now());
    setTimeout(() => requestAnimationFrame(() => this.#run()), wait);
  }

  #run() {
    if (!this.#asked || this.#held) return;
    this.#asked = false;
    this.#last = performance.now();
    this.draw();
  }
}
