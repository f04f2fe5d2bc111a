// The smaller charts: throughput by rank, share of each epoch's batches, evaluation.
import { xAxis, yAxis } from "./chart.js";
import { fromWire, measure } from "./format.js";
import { rankDash, rankToken, token } from "./ranks.js";
import { lowerBound, smooth, thin } from "./thinning.js";

export function drawThroughput(chart, data, view, shared, label) {
  const [from, to] = shared.shown;
  const traces = [...data.ranks].sort(([one], [other]) => one - other).map(([rank, series]) => {
    const xs = data.xs(series, view.x);
    const rates = smooth(series.rate, series.samples, view.smoothing);
    const indices = thin(rates, Math.max(0, lowerBound(xs, from) - 1), Math.min(xs.length, lowerBound(xs, to) + 1), 800);
    return {
      type: "scatter", mode: "lines", connectgaps: false, name: label(rank), visible: view.shows(`rank-${rank}`),
      x: indices.map((index) => xs[index]), y: indices.map((index) => (Number.isFinite(rates[index]) ? rates[index] : null)),
      line: { color: token(rankToken(rank)), width: 1.7, dash: rankDash(rank) }, hovertemplate: "%{y:,.0f} / s",
    };
  });
  chart.draw(traces, { xaxis: xAxis(shared, { nticks: 4 }), yaxis: yAxis({ rangemode: "tozero", nticks: 4, tickformat: "~s" }) });
}

export function drawShare(chart, data, view, shared, label) {
  const traces = data.workers().map((rank) => ({
    type: "scatter", mode: "lines+markers", name: label(rank), visible: view.shows(`rank-${rank}`), connectgaps: false,
    x: data.epochs.map((epoch) => data.xOfEpoch(epoch, view.x)),
    y: data.epochs.map((epoch) => fromWire(epoch.ranks.find((row) => row.rank === rank)?.batch_share ?? null)),
    line: { color: token(rankToken(rank)), width: 1.7, dash: rankDash(rank) }, marker: { size: 4 }, hovertemplate: "%{y:.1%}",
  }));
  chart.draw(traces, {
    xaxis: xAxis(shared, { nticks: 4 }),
    yaxis: yAxis({ range: [0, 1], tickformat: ".0%", tickvals: [0, 0.5, 1] }),
  });
}

export function drawEvaluation(chart, data, view, shared, name) {
  const values = data.epochs.map((epoch) => fromWire(epoch.eval?.[name] ?? null));
  const good = token("--good");
  chart.draw([{
    type: "scatter", mode: "lines+markers", name, connectgaps: false,
    x: data.epochs.map((epoch) => data.xOfEpoch(epoch, view.x)),
    y: values.map((value) => (Number.isFinite(value) ? value : null)),
    text: values.map((value) => measure(name, value)), hovertemplate: "%{text}",
    line: { color: good, width: 1.8 }, marker: { color: good, size: 6 },
  }], {
    xaxis: xAxis(shared),
    yaxis: yAxis({ tickformat: measure(name, 0.5).includes("%") ? ".1~%" : "~g", nticks: 5 }),
  });
}
