// The run page: puts the stream into the data, and the data onto the page.
import { ifChanged } from "./changes.js";
import { Chart, SharedX } from "./chart.js";
import { drawTables, onTableOpened } from "./data-tables.js";
import { byId, h, setText } from "./elements.js";
import { drawEvents } from "./event-list.js";
import { ago, duration } from "./format.js";
import { bindKeys } from "./keys.js";
import { drawLoss } from "./loss-chart.js";
import { lineSwatch, rankSwatch } from "./ranks.js";
import { Redraw } from "./redraw.js";
import { drawConfig, drawEpochs, drawGraph, drawState, drawWorkers, rankLabel } from "./run-cards.js";
import { drawChips, drawFigures, drawProgress, drawStatus, isLive, speak } from "./run-header.js";
import { RunData } from "./run-data.js";
import { RunStream } from "./run-stream.js";
import { drawEvaluation, drawShare, drawThroughput } from "./side-charts.js";
import { bindStop } from "./stop-button.js";
import { View } from "./view.js";

const first = JSON.parse(byId("first-run").textContent);
const data = new RunData(first.run);
const shared = new SharedX();
const charts = Object.fromEntries(["loss", "throughput", "share", "eval"].map((name) => [name, new Chart(byId(`${name}-chart`), shared)]));
const redraw = new Redraw(drawAll);
const view = new View(() => {
  shared.range = null; // a zoom is in the units of the x before
  redraw.ask();
});
let connection = "connecting";
let clockAhead = Date.parse(first.now) - Date.now(); // the server's clock less ours, in milliseconds
let withSyncs = false;
let measureShown = null;

const label = (rank) => rankLabel(data.run, rank);
const serverNow = () => Date.now() + clockAhead;

function drawAll() {
  drawFigures(data, serverNow());
  drawProgress(data);
  drawWorkers(data);
  ifChanged("epochs", [data.epochs.length, data.epochs.at(-1)?.seq, data.run.status], () => drawEpochs(data));
  ifChanged("events", [data.events.length, data.syncs.length * withSyncs, withSyncs], () => drawEvents(data, withSyncs));
  drawTables(data);
  drawTools();
  drawLegend();
  speak(data);
  if (window.Plotly) drawCharts();
  document.body.dataset.cursor = data.cursor;
  document.body.dataset.steps = data.numSteps;
}

function drawCharts() {
  shared.whole = [0, Math.max(wholeRun(), Number.EPSILON)];
  drawLoss(charts.loss, data, view, shared, label);
  drawThroughput(charts.throughput, data, view, shared, label);
  drawShare(charts.share, data, view, shared, label);
  drawEvaluations();
}

function wholeRun() {
  const ends = [...data.ranks.values()].map((series) => data.xs(series, view.x).at(-1));
  return Math.max(0, ...ends, ...data.epochs.map((epoch) => data.xOfEpoch(epoch, view.x)).slice(-1)) * 1.005 || 1;
}

function drawEvaluations() {
  const names = [...new Set(data.epochs.flatMap((epoch) => Object.keys(epoch.eval ?? {})))].sort();
  byId("eval-card").hidden = names.length === 0;
  if (names.length === 0) return;
  measureShown ??= names.find((name) => name === "accuracy") ?? names[0];
  byId("eval-tools").replaceChildren(...names.map((name) => h("button", {
    class: "tool", type: "button", "aria-pressed": String(name === measureShown),
    on: { click: () => { measureShown = name; redraw.ask(); } },
  }, name)));
  drawEvaluation(charts.eval, data, view, shared, measureShown);
}

function drawTools() {
  for (const button of document.querySelectorAll("[data-x]")) button.setAttribute("aria-pressed", String(button.dataset.x === view.x));
  byId("log").setAttribute("aria-pressed", String(view.isLog(data)));
  setText(byId("smooth"), view.smoothing > 0 ? `smooth ${view.smoothing}` : "raw");
  byId("whole").hidden = shared.range === null;
}

function drawLegend() {
  const noSync = (data.run.world_size ?? 2) < 2
    ? "one worker: nothing to average"
    : "no average yet: the first one closes the first round";
  const caption = data.syncs.length === 0 ? noSync
    : data.run.policy === "sync" ? "each tick is a report of averages, taken after every batch"
      : "each tick is an average; height is how far the replicas had drifted";
  ifChanged("legend", [data.workers().map(label), view.solo, caption], () => fillLegend(caption));
}

function fillLegend(caption) {
  const entry = (name, swatch, text) => h("button", {
    type: "button", "aria-pressed": String(view.shows(name)), title: "Alone, or all again", on: { click: () => view.toggleSolo(name) },
  }, swatch, text);
  byId("loss-legend").replaceChildren(
    ...data.workers().map((rank) => entry(`rank-${rank}`, rankSwatch(rank), label(rank))),
    entry("epoch", lineSwatch("--ink", "solid"), "epoch mean"), h("span", { class: "caption" }, caption));
}

function drawAge() {
  byId("age").textContent = ageText();
}

function ageText() {
  if (redraw.held) return "held: space goes on";
  if (connection === "reconnecting") return "reconnecting";
  if (!isLive(data.run)) return data.run.ended_at ? `ended ${ago((serverNow() - Date.parse(data.run.ended_at)) / 1000)}` : "";
  if (!data.lastWallTime) return "no data yet";
  return `last data ${duration(Math.max(0, (serverNow() - Date.parse(data.lastWallTime)) / 1000))} ago`;
}

// What changes while a run goes on, and is not in its configuration.
const MOVING = Object.fromEntries([
  "status", "epoch", "avg_loss", "num_samples", "num_batches", "num_syncs", "capacity_efficiency", "anchor", "global_step",
  "wall_s", "eval", "last_seq", "heartbeat_at", "cancel_requested_at", "error",
].map((name) => [name, null]));

let stateOf = "";
function drawRun() {
  const { run } = data;
  drawStatus(run);
  ifChanged("chips", [run.policy, run.backend, run.workers, run.world_size, run.tags], () => drawChips(run));
  ifChanged("config", { ...run, ...MOVING }, () => drawConfig(run));
  drawGraph(run);
  drawNotices(run);
  stop.show(run);
  if (stateOf !== run.status) {
    stateOf = run.status;
    drawState(run).catch(() => { stateOf = ""; }); // the server is away: asked again with the next word of the run
  }
}

function drawNotices(run) {
  const failure = byId("failure");
  failure.hidden = !run.error;
  if (run.error) failure.replaceChildren(h("strong", {}, run.status === "failed" ? "The run failed" : "Something went wrong"), h("pre", {}, run.error));
  const silent = run.heartbeat_at ? ` since ${new Date(run.heartbeat_at).toLocaleTimeString("sv-SE")}` : "";
  const hints = {
    pending: "Waiting for the training process to start.",
    lost: `The training process has not been heard of${silent}. What it recorded until then is here.`,
  };
  byId("hint").hidden = !(run.status in hints);
  setText(byId("hint"), hints[run.status] ?? "");
}

function tellHeld() {
  redraw.hold(!redraw.held);
  drawAge();
}

const stop = bindStop(data.run.id);
for (const button of document.querySelectorAll("[data-x]")) button.addEventListener("click", () => view.setX(button.dataset.x));
const wholeAgain = () => shared.zoom(null);
byId("log").addEventListener("click", () => view.toggleLog(data));
byId("smooth").addEventListener("click", () => view.nextSmoothing());
byId("whole").addEventListener("click", wholeAgain);
byId("with-syncs").addEventListener("click", ({ currentTarget }) => {
  withSyncs = !withSyncs;
  currentTarget.setAttribute("aria-pressed", String(withSyncs));
  redraw.ask();
});
shared.onZoom = () => redraw.ask();
document.addEventListener("themechange", () => redraw.ask());
onTableOpened(() => redraw.ask());
bindKeys({ " ": tellHeld, s: () => view.nextSmoothing(), l: () => view.toggleLog(data), x: () => view.nextX(), 0: wholeAgain });
byId("plotly").addEventListener("load", () => redraw.ask());
setInterval(drawAge, 250);
setInterval(() => isLive(data.run) && redraw.ask(), 1000);

new RunStream(`/api/runs/${data.run.id}/stream`, () => data.cursor, {
  rows(message) {
    const fits = data.apply(message);
    redraw.ask();
    return fits;
  },
  run({ now, run }) {
    clockAhead = Date.parse(now) - Date.now();
    data.run = { ...data.run, ...run };
    drawRun();
    redraw.ask();
  },
  state(word) {
    connection = word;
    document.body.dataset.connection = word;
    drawAge();
  },
});

drawRun();
redraw.ask();
