// Building of elements. Text is set as text, never parsed as HTML: a run's name may hold anything.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (value !== null && value !== undefined) {
      element.setAttribute(name, String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

// Writes only where the text has changed: a live region that is written to is read out again.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function table(columns, rows) {
  const head = columns.map(({ label, text }) => h("th", { scope: "col", class: text ? "text" : null }, label));
  const body = rows.map((row) =>
    h("tr", {}, row.map((cell, index) => h("td", { class: columns[index].text ? "text" : null }, cell))));
  return h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
}
