// How the charts are looked at: x, scale, smoothing, which series. Kept from visit to visit, but for the solo.
const KEY = "flodl-view";
const SMOOTHINGS = [0.6, 0.9, 0];
const MODES = ["step", "epoch", "time"];

export class View {
  constructor(changed) {
    this.changed = changed;
    this.x = "step";
    this.log = null; // null: as the data allow
    this.smoothing = SMOOTHINGS[0];
    this.solo = null;
    this.#restore();
  }

  #restore() {
    try {
      const kept = JSON.parse(localStorage.getItem(KEY) ?? "{}");
      if (MODES.includes(kept.x)) this.x = kept.x;
      if (SMOOTHINGS.includes(kept.smoothing)) this.smoothing = kept.smoothing;
      if (typeof kept.log === "boolean") this.log = kept.log;
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

  // A loss falls by orders of magnitude, and on a log scale one sees it also late in a run; not every loss has a logarithm.
  isLog(data) {
    return this.log ?? data.allPositive;
  }

  toggleLog(data) {
    this.#set({ log: !this.isLog(data) });
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
