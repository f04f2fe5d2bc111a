// Draws a part of the page only where what it shows has changed: a list that is drawn anew loses scroll and selection.
const shown = new Map();

export function ifChanged(part, value, draw) {
  const now = JSON.stringify(value);
  if (shown.get(part) === now) return;
  shown.set(part, now);
  draw();
}
