// A rank's colour and dash, the same in every place; and the tokens as colours that a chart understands.
import { svg } from "./elements.js";

const DASHES = ["solid", "dash", "dot", "dashdot"];
const STROKES = { solid: null, dash: "6 3", dot: "2 2.5", dashdot: "7 2.5 2 2.5" };
const HUES = 8;

// Ranks 8 to 15 have the hues of 0 to 7 with another dash, so that no two of 16 look alike.
export function rankDash(rank) {
  return DASHES[(rank + (Math.floor(rank / HUES) % 2) * 2) % DASHES.length];
}

export function rankToken(rank) {
  return `--rank-${rank % HUES}`;
}

let colours = new Map();
document.addEventListener("themechange", () => {
  colours = new Map();
});

// Resolves light-dark(), which a custom property's own text still holds.
export function token(name) {
  if (!colours.has(name)) {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    colours.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return colours.get(name);
}

export function faded(colour, alpha) {
  return colour.replace(/^rgba?\(([^,]+),([^,]+),([^,)]+).*$/, `rgba($1,$2,$3,${alpha})`);
}

export function lineSwatch(colourToken, dash) {
  return svg("svg", { class: "swatch", width: 18, height: 8, "aria-hidden": "true" },
    svg("line", {
      x1: 0, y1: 4, x2: 18, y2: 4, "stroke-width": 2.2,
      "stroke-dasharray": STROKES[dash], style: `stroke: var(${colourToken})`,
    }));
}

export function rankSwatch(rank) {
  return lineSwatch(rankToken(rank), rankDash(rank));
}
