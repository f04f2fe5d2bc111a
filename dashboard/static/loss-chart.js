// Loss by rank, raw and smoothed; the mean of each epoch; and under it, on the same x, a lane of averages.
import { axisTitle, xAxis, yAxis } from "./chart.js";
import { loss } from "./format.js";
import { faded, rankDash, rankToken, token } from "./ranks.js";
import { lowerBound, smooth, thin } from "./thinning.js";

const MOST_TICKS = 1500;
const MOST_MARKS = 60;

// Indices of a series within the shown range, and one more at each end, so that lines run to the edge.
function shownIndices(xs, ys, [from, to]) {
  return thin(ys, Math.max(0, lowerBound(xs, from) - 1), Math.min(xs.length, lowerBound(xs, to) + 1));
}

const finiteOrNull = (value, logScale) => (Number.isFinite(value) && (!logScale || value > 0) ? value : null);

export function rankTraces(data, view, shared, label) {
  const raw = []; // under all the others
  const traces = [];
  for (const [rank, series] of [...data.ranks].sort(([one], [other]) => one - other)) {
    const shown = view.shows(`rank-${rank}`);
    const xs = data.xs(series, view.x);
    const smoothed = smooth(series.loss, series.samples, view.smoothing);
    const colour = token(rankToken(rank));
    const indices = shownIndices(xs, series.loss, shared.shown);
    const line = (ys, extra) => ({
      type: "scatter", mode: "lines", connectgaps: false, visible: shown, name: label(rank),
      x: indices.map((index) => xs[index]), y: indices.map((index) => finiteOrNull(ys[index], view.isLog(data))), ...extra,
    });
    if (view.smoothing > 0) {
      raw.push(line(series.loss, { line: { color: faded(colour, Math.max(0.12, 0.45 / Math.sqrt(data.ranks.size))), width: 1 }, hoverinfo: "skip" }));
    }
    traces.push(line(smoothed, {
      meta: { rank, kind: "loss" },
      line: { color: colour, width: view.smoothing > 0 ? 1.9 : 1.3, dash: rankDash(rank) },
      customdata: indices.map((index) => loss(series.loss[index])), hovertemplate: "%{customdata}",
    }));
    traces.push(...gapMarks(series, xs, shown, label(rank), shared.shown));
  }
  return [...raw, ...traces];
}

// NaN and infinity: no line runs over them, and a mark says that they were there, on the last finite height before.
// Marks that would lie on each other are one, with a count.
function gapMarks(series, xs, shown, name, [from, to]) {
  const marks = [];
  let height = series.loss.find(Number.isFinite) ?? 1;
  series.loss.forEach((value, index) => {
    if (Number.isFinite(value)) height = value;
    else if (value !== null && xs[index] >= from && xs[index] <= to) {
      const last = marks.at(-1);
      if (last && last.value === value && xs[index] - last.x < (to - from) / MOST_MARKS) last.windows += 1;
      else marks.push({ x: xs[index], y: height, value, windows: 1 });
    }
  });
  if (marks.length === 0) return [];
  return [{
    type: "scatter", mode: "markers", visible: shown, name, x: marks.map(({ x }) => x), y: marks.map(({ y }) => y),
    text: marks.map(({ value, windows }) => (windows > 1 ? `${value} in ${windows} windows` : String(value))),
    hovertemplate: "%{text}", meta: { kind: "gap" },
    marker: {
      symbol: marks.map(({ value }) => (Number.isNaN(value) ? "x-thin" : value > 0 ? "triangle-up-open" : "triangle-down-open")),
      size: 8, color: token("--bad"), line: { color: token("--bad"), width: 2 },
    },
  }];
}

function epochTrace(data, view) {
  const ink = token("--ink");
  return {
    type: "scatter", mode: "lines+markers", name: "epoch mean", visible: view.shows("epoch"), connectgaps: false,
    x: data.epochs.map((_, index) => data.xOfMean(index, view.x)),
    y: data.epochs.map((epoch) => finiteOrNull(epoch.avg_loss, view.isLog(data))),
    customdata: data.epochs.map((epoch) => loss(epoch.avg_loss)), hovertemplate: "%{customdata}",
    line: { color: ink, width: 1.3 }, marker: { color: ink, size: 5.5 }, meta: { kind: "epoch" },
  };
}

export function driftOf(sync) {
  const values = Object.values(sync.divergence ?? {}).filter(Number.isFinite);
  return values.length > 0 ? Math.max(...values) : null;
}

// One tick for each average (of those that share a pixel, the tallest), as strokes of constant width.
function syncTraces(data, view, shared) {
  const [from, to] = shared.shown;
  const inside = data.syncs
    .map((sync) => ({ sync, x: data.xOfSync(sync, view.x), drift: driftOf(sync) }))
    .filter(({ x }) => x >= from && x <= to);
  const kept = inside.length <= MOST_TICKS
    ? inside
    : thin(inside.map(({ drift }) => drift ?? 0), 0, inside.length, MOST_TICKS).map((index) => inside[index]);
  const measured = kept.some(({ drift }) => drift !== null);
  const strokes = { x: [], y: [] };
  for (const { x, drift } of kept) {
    strokes.x.push(x, x, null);
    strokes.y.push(0, measured ? drift ?? 0 : 1, null);
  }
  const warn = token("--warn");
  return [
    {
      type: "scatter", mode: "lines", ...strokes, yaxis: "y2", hoverinfo: "skip",
      line: { color: warn, width: kept.length > 250 ? 1 : 1.6 }, meta: { kind: "sync-strokes" },
    },
    {
      type: "scatter", mode: "markers", yaxis: "y2", name: "average", meta: { kind: "sync" },
      x: kept.map(({ x }) => x), y: kept.map(({ drift }) => (measured ? drift ?? 0 : 1)),
      text: kept.map(({ sync, drift }) => describeSync(sync, drift)), hovertemplate: "%{text}<extra></extra>",
      marker: { color: warn, size: 3, opacity: 0 },
    },
  ];
}

export function describeSync(sync, drift = driftOf(sync)) {
  const ranks = Object.keys(sync.weights ?? {}).length;
  const number = sync.num_syncs > 1 ? `${sync.num_syncs} averages to round ${sync.round}` : `average ${sync.round}`;
  const parts = [number, `${sync.duration_ms?.toFixed(1)} ms`];
  if (ranks > 0) parts.push(`${ranks} ranks`);
  if (sync.anchor) parts.push(`anchor ${sync.anchor}`);
  if (drift !== null) parts.push(`drift ${drift.toPrecision(3)}`);
  if (sync.excluded?.length > 0) parts.push(`without rank ${sync.excluded.join(", ")}`);
  return parts.join(" \u00b7 ");
}

// Plotly writes the ticks between powers of ten as a single digit; these are whole numbers, as many as fit.
function logTicks(data) {
  const values = [...data.ranks.values()].flatMap((series) => extent(series.loss));
  const low = Math.min(...values);
  const high = Math.max(...values);
  if (!(low > 0 && high < Infinity)) return {};
  const digits = Math.log10(high / low) > 2.5 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const digit of digits) ticks.push(Number(`${digit}e${power}`));
  }
  return { tickvals: ticks, ticktext: ticks.map((tick) => (tick >= 1e-4 && tick < 1e5 ? String(tick) : tick.toExponential(0))) };
}

function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [];
}

export function drawLoss(chart, data, view, shared, label) {
  chart.draw([...rankTraces(data, view, shared, label), epochTrace(data, view), ...syncTraces(data, view, shared)], {
    xaxis: xAxis(shared, { anchor: "y2", title: { text: axisTitle(view.x), font: { size: 11 }, standoff: 4 } }),
    yaxis: yAxis({ domain: [0.24, 1], ...(view.isLog(data) ? { type: "log", ...logTicks(data) } : { type: "linear" }) }),
    yaxis2: yAxis({ domain: [0, 0.15], rangemode: "tozero", nticks: 3 }),
    margin: { l: 46, r: 8, t: 6, b: 38 },
  });
}
