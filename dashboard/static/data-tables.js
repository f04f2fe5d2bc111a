// The table behind each chart, drawn while it is open.
import { byId, h, table } from "./elements.js";
import { count, duration, fromWire, loss, measure, NONE, percent } from "./format.js";
import { driftOf } from "./loss-chart.js";
import { learningRate, rankLabel } from "./run-cards.js";

const MOST = 200;

function latestSteps(data) {
  const rows = [];
  for (const [rank, series] of data.ranks) {
    for (let index = Math.max(0, series.seq.length - MOST); index < series.seq.length; index += 1) rows.push({ rank, series, index });
  }
  return rows.sort((one, other) => other.series.seq[other.index] - one.series.seq[one.index]).slice(0, MOST);
}

const TABLES = {
  "loss-table": (data) => [
    ["seq", "rank", "step", "time", "loss", "lr", "batches"],
    latestSteps(data).map(({ rank, series, index }) => [
      String(series.seq[index]), String(rank), count(series.step[index]), duration(series.time[index]),
      loss(series.loss[index]), learningRate(series.lr[index]), count(series.batches[index]),
    ]),
    data.numSteps, "steps",
  ],
  "throughput-table": (data) => [
    ["rank", "step", "time", "samples / s", "samples", "busy ms"],
    latestSteps(data).map(({ rank, series, index }) => [
      String(rank), count(series.step[index]), duration(series.time[index]), count(series.rate[index]),
      count(series.samples[index]), series.busy[index]?.toFixed(0) ?? NONE,
    ]),
    data.numSteps, "steps",
  ],
  "sync-table": (data) => [
    ["round", "step", "time", "duration ms", "anchor", "drift"],
    data.syncs.slice(-MOST).reverse().map((sync) => [
      String(sync.round), count(sync.global_step), duration(sync.time_s), sync.duration_ms?.toFixed(2) ?? NONE,
      String(sync.anchor ?? NONE), driftOf(sync)?.toPrecision(3) ?? NONE,
    ]),
    data.syncs.length, "events",
  ],
  "share-table": (data) => [
    ["epoch", ...data.workers().map((rank) => rankLabel(data.run, rank))],
    data.epochs.toReversed().map((epoch) => [
      String(epoch.epoch + 1),
      ...data.workers().map((rank) => percent(epoch.ranks.find((row) => row.rank === rank)?.batch_share ?? null)),
    ]),
    data.epochs.length, "epochs",
  ],
  "eval-table": (data) => {
    const names = [...new Set(data.epochs.flatMap((epoch) => Object.keys(epoch.eval ?? {})))];
    return [
      ["epoch", ...names],
      data.epochs.toReversed().map((epoch) => [
        String(epoch.epoch + 1), ...names.map((name) => measure(name, fromWire(epoch.eval?.[name] ?? null))),
      ]),
      data.epochs.length, "epochs",
    ];
  },
};

export function drawTables(data) {
  for (const [id, build] of Object.entries(TABLES)) {
    const details = byId(id);
    if (!details.open) continue;
    const [labels, rows, total, path] = build(data);
    const more = rows.length < total
      ? h("p", { class: "empty" }, `Latest ${rows.length} of ${count(total)}. `, h("a", { href: `/api/runs/${data.run.id}/${path}` }, "All of them"))
      : null;
    const box = h("div", { class: "table-scroll", tabindex: 0, role: "group", "aria-label": "Rows" },
      table(labels.map((label) => ({ label })), rows));
    details.replaceChildren(details.querySelector("summary"), box, ...(more ? [more] : []));
  }
}

export function onTableOpened(redraw) {
  for (const id of Object.keys(TABLES)) byId(id).addEventListener("toggle", redraw);
}
