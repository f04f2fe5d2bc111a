// One chart. All charts of a page share the range of x and the cursor under the pointer.
import { token } from "./ranks.js";

const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false, showTips: false };
const FINE_POINTER = matchMedia("(pointer: fine)");

export class SharedX {
  constructor() {
    this.range = null; // [from, to] after a zoom, null for the whole run
    this.whole = [0, 1];
    this.charts = [];
    this.onZoom = () => {};
  }

  zoom(range) {
    this.range = range;
    this.onZoom();
  }

  get shown() {
    return this.range ?? this.whole;
  }

  point(x) {
    for (const chart of this.charts) chart.showCursor(x);
  }
}

function axis(extra = {}) {
  return {
    gridcolor: token("--grid"), zeroline: false, linecolor: token("--line"), showline: false, ticks: "",
    tickfont: { size: 11, color: token("--dim") }, automargin: false, ...extra,
  };
}

export function xAxis(shared, extra = {}) {
  return axis({ showspikes: false, range: shared.shown, autorange: false, nticks: 8, ticklabelstandoff: 4, hoverformat: ",.4~g", ...extra });
}

export function yAxis(extra = {}) {
  return axis({ fixedrange: true, nticks: 6, ...extra });
}

export function axisTitle(mode) {
  return { step: "global step", epoch: "epoch", time: "seconds since the start" }[mode];
}

export class Chart {
  constructor(element, shared) {
    this.element = element;
    this.shared = shared;
    this.drawn = false;
    this.line = document.createElement("div");
    this.line.className = "cursor-line";
    this.line.hidden = true;
    shared.charts.push(this);
  }

  draw(traces, layout) {
    const full = {
      margin: { l: 46, r: 8, t: 6, b: 24 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11.5, color: token("--dim") },
      showlegend: false, hovermode: "x unified", hoverdistance: 24,
      dragmode: FINE_POINTER.matches ? "zoom" : false,
      hoverlabel: {
        bgcolor: token("--card"), bordercolor: token("--line"), align: "left", namelength: -1,
        font: { size: 11.5, color: token("--ink") },
      },
      newshape: {}, selectdirection: "h", ...layout,
    };
    window.Plotly.react(this.element, traces, full, CONFIG);
    if (!this.drawn) this.#listen();
    this.drawn = true;
  }

  #listen() {
    this.element.append(this.line);
    this.element.on("plotly_relayout", (change) => {
      const from = change["xaxis.range[0]"];
      if (from !== undefined) this.shared.zoom([from, change["xaxis.range[1]"]]);
    });
    this.element.on("plotly_doubleclick", () => this.shared.zoom(null));
    this.element.on("plotly_hover", (event) => this.shared.point(event.points[0].x));
    this.element.on("plotly_unhover", () => this.shared.point(null));
  }

  // A thin line at x, also in the charts that the pointer is not in.
  showCursor(x) {
    const { xaxis } = this.element._fullLayout ?? {};
    const [from, to] = this.shared.shown;
    this.line.hidden = !xaxis || x === null || x < from || x > to;
    if (!this.line.hidden) this.line.style.left = `${xaxis._offset + xaxis.l2p(x)}px`;
  }
}
