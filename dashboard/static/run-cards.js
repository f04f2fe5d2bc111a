// The cards that are no charts: workers, epochs, trained state, model, configuration.
import { byId, h, setText, table } from "./elements.js";
import { bytes, count, duration, fromWire, loss, measure, moment, NONE, percent } from "./format.js";
import { rankSwatch } from "./ranks.js";
import { isLive } from "./run-header.js";

export function rankLabel(run, rank) {
  const worker = (run.workers ?? []).find((known) => known.rank === rank);
  if (!worker) return `rank ${rank}`;
  const slowed = (worker.slowdown ?? 1) !== 1 && !worker.device.includes("@") ? ` at ${worker.slowdown}x` : "";
  return `${rank} \u00b7 ${worker.device.replace("@", " at ")}${worker.device.includes("@") ? "x" : slowed}`;
}

const WORKER_COLUMNS = [
  { label: "rank", text: true }, { label: "samples / s" }, { label: "share" }, { label: "ms / batch" }, { label: "busy" },
];

export function drawWorkers(data) {
  const live = isLive(data.run);
  const span = live ? 10 : Infinity;
  setText(byId("workers-sub"), live ? "last 10 s" : "whole run");
  const ranks = data.workers();
  const recent = new Map(ranks.map((rank) => [rank, data.recent(rank, span)]));
  const batches = [...recent.values()].reduce((sum, row) => sum + (row?.batches ?? 0), 0);
  const rows = ranks.map((rank) => {
    const row = recent.get(rank);
    const name = h("span", {}, rankSwatch(rank), ` ${rankLabel(data.run, rank)}`);
    if (!row || row.batches === 0 || row.seconds <= 0) return [name, NONE, NONE, NONE, NONE];
    return [
      name, count(row.samples / row.seconds), percent(row.batches / batches), (row.busy / row.batches).toFixed(1),
      percent(Math.min(1, row.busy / 1000 / row.seconds)),
    ];
  });
  byId("workers").replaceChildren(ranks.length > 0 ? table(WORKER_COLUMNS, rows) : h("p", { class: "empty" }, "No worker has reported yet."));
}

export function drawEpochs(data) {
  const box = byId("epochs");
  if (data.epochs.length === 0) {
    const text = isLive(data.run) ? "The first epoch is still under way." : "No epoch was trained to its end.";
    box.replaceChildren(h("p", { class: "empty" }, text));
    return;
  }
  const names = [...new Set(data.epochs.flatMap((epoch) => Object.keys(epoch.eval ?? {})))];
  const scalars = [...new Set(data.epochs.flatMap((epoch) => Object.keys(epoch.scalars ?? {})))];
  const columns = ["epoch", "loss", ...names.map((name) => `eval ${name}`), ...scalars, "lr", "batches", "samples", "efficiency", "time"];
  const rows = data.epochs.toReversed().map((epoch) => [
    String(epoch.epoch + 1), loss(epoch.avg_loss),
    ...names.map((name) => measure(name, fromWire(epoch.eval?.[name] ?? null))),
    ...scalars.map((name) => loss(epoch.scalars?.[name] ?? null)),
    learningRate(epoch.lr), count(epoch.num_batches), count(epoch.num_samples),
    percent(epoch.capacity_efficiency), duration(fromWire(epoch.epoch_ms) / 1000),
  ]);
  box.replaceChildren(h("div", { class: "table-scroll", tabindex: 0, role: "group", "aria-label": "Epochs" },
    table(columns.map((label) => ({ label })), rows)));
}

export function learningRate(value) {
  const number = fromWire(value);
  return Number.isFinite(number) ? String(Number(number.toPrecision(4))) : NONE;
}

export async function drawState(run) {
  const box = byId("state");
  const response = await fetch(`/api/runs/${run.id}/files`);
  const file = (await response.json()).items.findLast((known) => known.kind === "state");
  if (!file) {
    const text = isLive(run) ? "Saved when the run ends." : "This run left none.";
    box.replaceChildren(h("p", { class: "empty" }, text));
    return;
  }
  box.replaceChildren(
    h("p", {}, h("a", { href: `/api/runs/${run.id}/state`, download: "" }, "state.safetensors"), ` \u00b7 ${bytes(file.size_bytes)}`),
    h("code", { class: "checksum" }, `sha256 ${file.sha256}`),
  );
}

export function drawGraph(run) {
  const frame = byId("graph");
  const empty = byId("graph-empty");
  const hash = run.graph_hash;
  empty.hidden = Boolean(hash);
  frame.hidden = !hash;
  setText(empty, isLive(run) ? "Drawn once the model has seen its first batch." : "No graph was recorded.");
  if (!hash || frame.dataset.hash === hash) return;
  frame.dataset.hash = hash;
  setText(byId("graph-sub"), `${hash.slice(0, 12)}`);
  const source = `/api/runs/${run.id}/graph.svg`;
  frame.replaceChildren(h("img", { src: source, alt: "Graph of the model's operators, grouped by module" }));
  byId("graph-tools").replaceChildren(h("a", { class: "tool", href: source, target: "_blank", rel: "noopener" }, "open"));
}

function pairs(rows) {
  return h("dl", { class: "pairs" }, rows.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([label, value, mono]) => [h("dt", {}, label), h("dd", { class: mono ? "mono" : null }, String(value))]));
}

export function drawConfig(run) {
  const meta = run.training_meta ?? {};
  byId("config").replaceChildren(
    pairs([
      ["run", run.id, true], ["recipe", run.recipe], ["policy", run.policy], ["backend", run.backend],
      ["batch size", run.batch_size && `${run.batch_size} a worker`], ["epochs", run.num_epochs], ["seed", run.seed],
      ["lr scale", meta.lr_scale], ["mode", meta.mode], ["devices", (run.workers ?? []).map((worker) => worker.device).join(", ")],
      ["notes", run.notes], ["version", run.version], ["git commit", run.git_commit, true], ["flow run", run.flow_run_id, true],
      ["created", moment(run.created_at)], ["started", moment(run.started_at)], ["ended", run.ended_at && moment(run.ended_at)],
    ]),
    h("details", { class: "data-table" }, h("summary", {}, "All parameters"),
      h("pre", { class: "config-json", tabindex: 0 }, JSON.stringify(run.config ?? {}, null, 2))),
  );
}
