// What happened, latest first. Averages come by the hundred and are left out unless asked for.
import { byId, h, setText } from "./elements.js";
import { count, duration } from "./format.js";
import { describeSync } from "./loss-chart.js";

const MOST = 300;

const KINDS = {
  run_started: ["run started", "", ({ devices, num_epochs }) => `${devices?.join(", ") ?? ""} \u00b7 ${num_epochs} epochs`],
  run_ended: ["run ended", "", ({ status, global_step }) => `${status} at step ${count(global_step)}`],
  epoch_ended: ["epoch ended", "", ({ epoch, num_samples }) => `${epoch + 1} \u00b7 ${count(num_samples)} samples`],
  sync: ["average", "", (payload) => describeSync(payload)],
  anchor_changed: ["anchor changed", "", ({ before, after }) => `${before} to ${after} batches of the slowest rank`],
  guard_changed: ["guard", "warn", ({ is_holding, divergence }) =>
    `${is_holding ? "holds anchor and overshoot" : "lets go"}: replicas were up to ${Number(divergence).toPrecision(2)} of their mean apart`],
  throttled: ["throttled", "warn", ({ num_batches_ahead }) => `${num_batches_ahead} batches ahead`],
  snapshot_late: ["snapshot late", "warn", ({ limit_s }) => `not within ${limit_s} s: averaged without it`],
  worker_lost: ["worker lost", "bad", ({ error }) => error ?? ""],
};

function plain(payload) {
  return Object.entries(payload ?? {}).map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(" \u00b7 ");
}

function item(event) {
  const [label, tone, describe] = KINDS[event.kind] ?? [event.kind.replaceAll("_", " "), "", plain];
  const who = event.rank === null || event.rank === undefined ? "" : ` rank ${event.rank}`;
  return h("li", {}, h("time", {}, duration(event.time_s)),
    h("span", {}, h("span", { class: `kind ${tone}` }, label + who), " ",
      h("span", { class: "detail" }, describe(event.payload ?? {}))));
}

export function drawEvents(data, withSyncs) {
  const shown = data.events.filter((event) => withSyncs || event.kind !== "sync");
  setText(byId("events-count"), shown.length > MOST ? `latest ${MOST} of ${count(shown.length)}` : "latest first");
  const empty = h("li", {}, h("time", {}, ""), h("span", { class: "detail" }, "Nothing has happened yet."));
  byId("events").replaceChildren(...(shown.length > 0 ? shown.slice(-MOST).reverse().map(item) : [empty]));
}
