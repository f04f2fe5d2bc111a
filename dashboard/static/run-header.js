// The header's figures: is it alive, how far, is it learning, is every device busy.
import { byId, h, setText } from "./elements.js";
import { count, duration, fromWire, loss, measure, NONE, percent } from "./format.js";

const LIVE = new Set(["pending", "running"]);
const LIVE_SPAN_S = 10;

export function isLive(run) {
  return LIVE.has(run.status);
}

// Seconds that the run has taken, by the server's clock.
export function elapsed(run, now) {
  if (!run.started_at) return null;
  const end = run.ended_at ? Date.parse(run.ended_at) : run.status === "lost" ? Date.parse(run.heartbeat_at) : now;
  return Math.max(0, (end - Date.parse(run.started_at)) / 1000);
}

function timeFigure(data, now) {
  const taken = elapsed(data.run, now);
  if (!isLive(data.run)) return ["took", duration(taken)];
  const fraction = data.fraction;
  const trained = data.lastTime - data.firstTime;
  if (!taken || !fraction || trained < 1) return ["so far", duration(taken)];
  const sinceData = data.lastWallTime ? Math.max(0, (now - Date.parse(data.lastWallTime)) / 1000) : 0;
  const left = Math.max(0, (trained * (1 - fraction)) / fraction - sinceData);
  return [`left, of ${duration(taken + left)}`, duration(left)];
}

function lossFigure(data) {
  const ended = data.epochs.at(-1);
  if (ended) return ["loss, epoch mean", loss(ended.avg_loss)];
  const latest = [...data.ranks.values()].map((series) => series.loss.at(-1)).filter(Number.isFinite);
  return ["loss, latest", latest.length > 0 ? loss(latest.reduce((sum, value) => sum + value, 0) / latest.length) : NONE];
}

function evalFigure(data) {
  const evaluation = data.epochs.at(-1)?.eval ?? {};
  const name = "accuracy" in evaluation ? "accuracy" : Object.keys(evaluation).find((key) => key !== "loss");
  return name ? [name, measure(name, fromWire(evaluation[name]))] : null;
}

function rateFigure(data) {
  if (!isLive(data.run)) {
    const wall = data.run.wall_s ?? data.lastTime - data.firstTime;
    return ["samples / s", wall > 0 ? count(data.samples / wall) : NONE];
  }
  const rates = data.workers().map((rank) => data.recent(rank, LIVE_SPAN_S)).filter((recent) => recent?.seconds > 0);
  return ["samples / s", rates.length > 0 ? count(rates.reduce((sum, { samples, seconds }) => sum + samples / seconds, 0)) : NONE];
}

function averagesFigure(data) {
  const averages = data.syncs.reduce((sum, sync) => sum + (sync.num_syncs ?? 1), 0);
  if ((data.run.world_size ?? 2) < 2) return ["averages: one worker", NONE];
  if (averages === 0) return ["averages yet", "0"];
  const anchor = data.syncs.at(-1).anchor;
  const cadence = data.run.policy === "sync" ? "every batch" : `anchor ${anchor}`;
  return [`averages, ${cadence}`, count(averages)];
}

export function figures(data, now) {
  const { run } = data;
  const epochs = [h("span", {}, String(Math.max(run.epoch ?? 0, data.epochs.length))), h("span", { class: "of" }, ` / ${run.num_epochs ?? NONE}`)];
  const efficiency = run.capacity_efficiency ?? data.epochs.at(-1)?.capacity_efficiency ?? null;
  return [
    ["epoch", epochs],
    timeFigure(data, now),
    lossFigure(data),
    evalFigure(data),
    ["capacity efficiency", percent(efficiency)],
    rateFigure(data),
    averagesFigure(data),
    ["global step", count(data.run.global_step > 0 ? data.run.global_step : null)],
  ].filter((figure) => figure !== null);
}

// The first and the third figure, epoch and loss, are those that a narrow header keeps.
export function drawFigures(data, now) {
  const drawn = figures(data, now);
  for (const list of document.querySelectorAll("[data-figures]")) {
    list.replaceChildren(...drawn.map(([label, value], index) =>
      h("div", { class: index === 0 || index === 1 ? "first" : null }, h("dt", {}, label),
        h("dd", {}, Array.isArray(value) ? value.map((node) => node.cloneNode(true)) : value))));
  }
}

export function drawProgress(data) {
  const bar = byId("progress");
  const fraction = data.fraction ?? 0;
  bar.firstElementChild.style.transform = `scaleX(${fraction})`;
  bar.setAttribute("aria-valuenow", String(Math.round(fraction * 100)));
}

export function drawStatus(run) {
  const status = byId("status");
  status.dataset.status = run.status;
  byId("run-header").dataset.status = run.status;
  setText(status, run.status[0].toUpperCase() + run.status.slice(1));
  document.title = `${run.status} \u00b7 ${run.name ?? run.recipe} - flodl`;
}

export function drawChips(run) {
  const slow = (run.workers ?? []).map((worker) => worker.slowdown ?? 1);
  const speeds = slow.some((value) => value !== slow[0]) && slow.length <= 4 ? `, ${slow.join(" : ")}` : "";
  const workers = run.world_size ? `${run.world_size} ${run.world_size === 1 ? "worker" : "workers"}${speeds}` : null;
  const chips = [run.policy, run.backend && `${run.backend} backend`, workers, `seed ${run.seed}`, ...(run.tags ?? [])];
  for (const box of document.querySelectorAll("[data-chips]")) {
    box.replaceChildren(...chips.filter(Boolean).map((text) => h("span", { class: "chip" }, text)));
  }
}

// What a screen reader is told: status and epochs, not every figure.
export function speak(data) {
  const ended = data.epochs.at(-1);
  const epoch = ended ? `, epoch ${ended.epoch + 1} of ${data.run.num_epochs} ended, loss ${loss(ended.avg_loss)}` : "";
  setText(byId("spoken"), `Run ${data.run.status}${epoch}`);
}
