// The list of runs: searched on the server, refreshed while it is looked at.
import { ifChanged } from "./changes.js";
import { byId, h, setText, svg } from "./elements.js";
import { ago, count, duration, loss, moment, NONE, percent } from "./format.js";
import { bindKeys } from "./keys.js";
import { elapsed, isLive } from "./run-header.js";

const REFRESH_MS = 2000;
const TYPING_MS = 150;
const filter = { search: "", status: "" };
let items = [];
let next = null;
let pages = 1;
let turn = 0;

function sparkline(values) {
  const finite = values.filter(Number.isFinite);
  if (finite.length < 2) return NONE;
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  const x = (index) => (index / (values.length - 1)) * 72 + 2;
  const y = (value) => 18 - ((value - low) / span) * 16;
  let path = "";
  let pen = "M";
  values.forEach((value, index) => {
    if (!Number.isFinite(value)) pen = "M";
    else {
      path += `${pen}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    }
  });
  return svg("svg", { class: "sparkline", width: 76, height: 20, role: "img", "aria-label": `loss from ${loss(finite[0])} to ${loss(finite.at(-1))}` },
    svg("path", { d: path, fill: "none", style: "stroke: var(--accent)", "stroke-width": 1.5, "stroke-linejoin": "round" }));
}

function row(run) {
  const href = `/runs/${run.id}`;
  const started = run.started_at ?? run.created_at;
  const share = run.num_epochs ? Math.min(1, (run.epoch ?? 0) / run.num_epochs) : 0;
  const tags = (run.tags ?? []).map((tag) => h("span", { class: "chip tag" }, tag));
  return h("tr", { "data-href": href, on: { click: (event) => event.target.closest("a") ?? (location.href = href) } },
    h("td", { class: "text" }, h("span", { class: "state", "data-status": run.status }, run.status)),
    h("td", { class: "text" }, h("a", { class: "name", href }, run.name ?? run.recipe),
      h("span", { class: "under" }, tags, run.name ? `${run.recipe} \u00b7 ` : "", h("span", { class: "mono" }, run.id.slice(-6)))),
    h("td", { class: "middle" }, `${run.epoch ?? 0} / ${run.num_epochs ?? NONE}`,
      h("span", { class: "bar" }, h("i", { style: `width: ${(share * 100).toFixed(1)}%` }))),
    h("td", {}, loss(run.avg_loss)),
    h("td", { class: "middle" }, sparkline(run.loss_by_epoch ?? [])),
    h("td", { class: "wide" }, percent(run.capacity_efficiency)),
    h("td", { class: "wide" }, run.world_size ? String(run.world_size) : NONE),
    h("td", { class: "wide text" }, `${run.policy}${run.backend ? ` \u00b7 ${run.backend}` : ""}`),
    h("td", { class: "wide" }, duration(elapsed(run, Date.now()))),
    h("td", { title: moment(started) }, startedAgo(started)));
}

function startedAgo(iso) {
  const [, figure, word] = ago((Date.now() - Date.parse(iso)) / 1000).match(/^(.*?)( ago)?$/);
  return [figure, h("span", { class: "wide-word" }, word ?? "")];
}

function blank() {
  if (filter.search || filter.status) {
    return [h("h2", {}, "No run matches"), h("p", {}, "Another word or another status may.")];
  }
  return [
    h("h2", {}, "No runs yet"), h("p", {}, "Start one, and it appears here while it trains:"),
    h("pre", {}, "flodl train digits --devices cpu,cpu@2.5"),
  ];
}

function draw() {
  byId("table-card").hidden = items.length === 0;
  byId("blank").hidden = items.length > 0;
  if (items.length === 0) byId("blank").replaceChildren(...blank());
  const live = items.filter(isLive).length;
  setText(byId("count"), `${count(items.length)}${next ? "+" : ""} ${items.length === 1 ? "run" : "runs"}${live ? `, ${live} live` : ""}`);
  byId("older").hidden = next === null;
  ifChanged("rows", [items, Math.floor(Date.now() / 30000)], drawRows); // the times go on by themselves
}

function drawRows() {
  const focused = document.activeElement?.closest("[data-href]")?.dataset.href;
  byId("rows").replaceChildren(...items.map(row));
  if (focused) document.querySelector(`[data-href="${focused}"] a`)?.focus({ preventScroll: true });
}

function take(page, before = []) {
  const known = new Set(before.map((run) => run.id));
  items = [...before, ...page.items.filter((run) => !known.has(run.id))];
  next = page.next;
  draw();
}

async function fetchPage(cursor) {
  const query = new URLSearchParams(Object.entries({ ...filter, cursor: cursor ?? "" }).filter(([, value]) => value));
  const response = await fetch(`/api/runs?${query}`);
  if (!response.ok) throw new Error((await response.json()).detail);
  return response.json();
}

// All pages that are open, from the top: runs that have come since push the others down.
async function refresh() {
  turn += 1;
  const mine = turn;
  try {
    let all = { items: [], next: null };
    for (let page = 0; page < pages; page += 1) {
      const more = await fetchPage(all.next);
      all = { items: [...all.items, ...more.items], next: more.next };
      if (!more.next) break;
    }
    byId("problem").hidden = true;
    if (mine === turn) take(all); // a later question may have been answered before this one
  } catch (error) {
    byId("problem").hidden = false;
    setText(byId("problem"), `The list is not up to date: ${error.message}`);
  }
}

function move(step) {
  const links = [...document.querySelectorAll("#rows a.name")];
  const now = links.indexOf(document.activeElement?.closest("tr")?.querySelector("a.name"));
  links[Math.max(0, Math.min(links.length - 1, now + step))]?.focus();
}

let typing = null;
byId("search").addEventListener("input", ({ target }) => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    filter.search = target.value.trim();
    pages = 1;
    refresh();
  }, TYPING_MS);
});
byId("search").addEventListener("keydown", (event) => {
  if (event.key === "Escape") event.target.blur();
  if (event.key === "Enter") document.querySelector("#rows a.name")?.focus();
});
for (const button of document.querySelectorAll("#filters button")) {
  button.addEventListener("click", () => {
    filter.status = button.dataset.status;
    pages = 1;
    for (const other of document.querySelectorAll("#filters button")) other.setAttribute("aria-pressed", String(other === button));
    refresh();
  });
}
byId("older").addEventListener("click", () => {
  pages += 1;
  refresh();
});
bindKeys({ "/": () => byId("search").focus(), j: () => move(1), k: () => move(-1) });
document.addEventListener("visibilitychange", () => document.hidden || refresh());
setInterval(() => document.hidden || refresh(), REFRESH_MS);
take(JSON.parse(byId("first-page").textContent));
