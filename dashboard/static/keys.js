// Keys of a page: { key: action }. Quiet while somebody types, and while a modifier is held.
import { byId } from "./elements.js";

const TYPING = new Set(["INPUT", "TEXTAREA", "SELECT"]);

export function bindKeys(actions) {
  const help = byId("help");
  const withHelp = { "?": () => help.showModal(), ...actions };
  for (const button of document.querySelectorAll("[data-help]")) button.addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open || TYPING.has(event.target.tagName)) return;
    // Space presses the button that has the focus, and opens a table.
    if (event.key === " " && event.target.closest("button, summary, a")) return;
    const action = withHelp[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
