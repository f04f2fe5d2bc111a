// How the charts are looked at: x, scale, smoothing, which series. Kept from visit to visit, but for the solo.
const KEY = "flodl-view";
const SMOOTHINGS = [0.6, 0.9, 0];
const MODES = ["step", "epoch", "time"];

export class View {
  constructor(changed) {
    this.changed = changed;
    this.x = "step";
    this.log = false;
    this.smoothing = SMOOTHINGS[0];
    this.solo = null;
    this.#restore();
  }

  #restore() {
    try {
      const kept = JSON.parse(localStorage.getItem(KEY) ?? "{}");
      if (MODES.includes(kept.x)) this.x = kept.x;
      if (SMOOTHINGS.includes(kept.smoothing)) this.smoothing = kept.smoothing;
      this.log = kept.log === true;
    } catch {
      // storage is blocked, or holds something else: the defaults
    }
  }

  #set(changes) {
    Object.assign(this, changes);
    try {
      localStorage.setItem(KEY, JSON.stringify({ x: this.x, log: this.log, smoothing: this.smoothing }));
    } catch {
      // the choice lasts as long as the page
    }
    this.changed();
  }

  setX(mode) {
    this.#set({ x: mode });
  }

  nextX() {
    this.setX(MODES[(MODES.indexOf(this.x) + 1) % MODES.length]);
  }

  toggleLog() {
    this.#set({ log: !this.log });
  }

  nextSmoothing() {
    this.#set({ smoothing: SMOOTHINGS[(SMOOTHINGS.indexOf(this.smoothing) + 1) % SMOOTHINGS.length] });
  }

  toggleSolo(name) {
    this.#set({ solo: this.solo === name ? null : name });
  }

  shows(name) {
    return this.solo === null || this.solo === name;
  }
}
