// All that is known of a run: its row, and the rows of its stream in order. Knows nothing of the page.
import { fromWire } from "./format.js";

class RankSeries {
  constructor() {
    for (const name of ["seq", "step", "time", "samplesBefore", "loss", "lr", "rate", "samples", "batches", "busy"]) {
      this[name] = [];
    }
  }
}

export class RunData {
  constructor(run) {
    this.run = run;
    this.cursor = 0;
    this.ranks = new Map();
    this.epochs = [];
    this.events = [];
    this.syncs = [];
    this.numSteps = 0;
    this.samples = 0;
    this.lastTime = 0;
    this.allPositive = true;
    this.lastWallTime = null;
  }

  // Takes a message of the stream. Rows that are here already are passed over; returns false where rows between the
  // cursor and the message are missing, and takes nothing then.
  apply(message) {
    if (message.after > this.cursor) return false;
    if (message.seq <= this.cursor) return true;
    const column = Object.fromEntries(message.steps.columns.map((name, index) => [name, index]));
    // In the order of seq, so that a page is the same however its messages were cut.
    const rows = [
      ...message.steps.rows.map((row) => [row[column.seq], () => this.#addStep(row, column)]),
      ...message.epochs.map((epoch) => [epoch.seq, () => this.#addEpoch(epoch)]),
      ...message.events.map((event) => [event.seq, () => this.#addEvent(event)]),
    ].sort((one, other) => one[0] - other[0]);
    for (const [seq, add] of rows) if (seq > this.cursor) add();
    if (message.wall_time) this.lastWallTime = message.wall_time;
    this.cursor = message.seq;
    return true;
  }

  #addStep(row, column) {
    const rank = row[column.rank];
    if (!this.ranks.has(rank)) this.ranks.set(rank, new RankSeries());
    const series = this.ranks.get(rank);
    series.seq.push(row[column.seq]);
    series.step.push(row[column.global_step]);
    series.time.push(row[column.time_s]);
    series.loss.push(fromWire(row[column.loss]));
    if (series.loss.at(-1) <= 0) this.allPositive = false;
    series.lr.push(fromWire(row[column.lr]));
    series.rate.push(fromWire(row[column.samples_per_s]));
    series.samples.push(row[column.num_samples]);
    series.batches.push(row[column.num_batches]);
    series.busy.push(row[column.busy_ms]);
    this.samples += row[column.num_samples];
    series.samplesBefore.push(this.samples);
    this.numSteps += 1;
    this.lastTime = Math.max(this.lastTime, row[column.time_s]);
  }

  #addEpoch(epoch) {
    // A resumed attempt ends an epoch again: the later row counts.
    this.epochs = this.epochs.filter((known) => known.epoch !== epoch.epoch);
    this.epochs.push({ ...epoch, ...this.#positionNow(epoch) });
    this.epochs.sort((one, other) => one.epoch - other.epoch);
  }

  #addEvent(event) {
    this.events.push(event);
    this.lastTime = Math.max(this.lastTime, event.time_s);
    if (event.kind === "sync") {
      this.syncs.push({ ...event.payload, time_s: event.time_s, seq: event.seq, samplesBefore: this.samples });
    }
  }

  #positionNow(epoch) {
    const ended = this.events.findLast((event) => event.kind === "epoch_ended" && event.payload.epoch === epoch.epoch);
    return {
      global_step: epoch.global_step ?? ended?.payload.global_step ?? this.#lastStep(),
      time_s: epoch.time_s ?? ended?.time_s ?? this.lastTime,
    };
  }

  #lastStep() {
    return Math.max(0, ...[...this.ranks.values()].map((series) => series.step.at(-1)));
  }

  get samplesPerEpoch() {
    const { total_samples: total, num_epochs: epochs } = this.run;
    return total && epochs ? total / epochs : this.epochs.at(-1)?.num_samples ?? null;
  }

  // Part of the run that is done, from 0 to 1, or null where that cannot be told.
  get fraction() {
    const { run } = this;
    if (run.status === "completed") return 1;
    return run.total_samples ? Math.min(1, this.samples / run.total_samples) : null;
  }

  // When the first batch began; what is before it is preparation.
  get firstTime() {
    const starts = [...this.ranks.values()].map((series) => series.time[0] - series.busy[0] / 1000);
    return starts.length > 0 ? Math.max(0, Math.min(...starts)) : 0;
  }

  // What a rank did in the last `span` seconds of data.
  recent(rank, span) {
    const series = this.ranks.get(rank);
    if (!series) return null;
    const since = Math.max(this.lastTime - span, this.firstTime);
    const sums = { samples: 0, batches: 0, busy: 0, seconds: this.lastTime - since };
    for (let index = series.time.length - 1; index >= 0 && series.time[index] > since; index -= 1) {
      sums.samples += series.samples[index];
      sums.batches += series.batches[index];
      sums.busy += series.busy[index];
    }
    return sums;
  }

  // Ranks in order: those that the run names, and those that have sent anything.
  workers() {
    const ranks = new Set([...(this.run.workers ?? []).map((worker) => worker.rank), ...this.ranks.keys()]);
    return [...ranks].sort((one, other) => one - other);
  }

  // Where a row lies on the x-axis.
  xs(series, mode) {
    if (mode === "time") return series.time;
    if (mode === "step") return series.step;
    const perEpoch = this.samplesPerEpoch;
    return perEpoch ? series.samplesBefore.map((samples) => samples / perEpoch) : series.step;
  }

  // Where an epoch's mean lies: in the middle of what it is the mean of.
  xOfMean(index, mode) {
    const end = this.xOfEpoch(this.epochs[index], mode);
    const before = this.epochs[index - 1];
    if (before?.epoch === this.epochs[index].epoch - 1) return (this.xOfEpoch(before, mode) + end) / 2;
    return mode === "epoch" ? end - 0.5 : this.epochs[index].epoch === 0 ? end / 2 : end;
  }

  xOfEpoch(epoch, mode) {
    return { step: epoch.global_step, epoch: epoch.epoch + 1, time: epoch.time_s }[mode];
  }

  xOfSync(sync, mode) {
    if (mode === "epoch") return this.samplesPerEpoch ? sync.samplesBefore / this.samplesPerEpoch : sync.global_step;
    return mode === "step" ? sync.global_step : sync.time_s;
  }
}
