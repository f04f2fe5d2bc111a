// Runs before the first paint, so that a page never flashes in the other theme. "auto" follows the system.
"use strict";
(() => {
  const ORDER = ["auto", "light", "dark"];
  const root = document.documentElement;

  function stored() {
    try {
      const theme = localStorage.getItem("flodl-theme");
      return ORDER.includes(theme) ? theme : "auto";
    } catch {
      return "auto"; // storage is blocked: the choice lasts as long as the page
    }
  }

  function apply(theme) {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-theme-switch]")) button.textContent = `Theme: ${theme}`;
    document.dispatchEvent(new Event("themechange"));
  }

  let theme = stored();
  apply(theme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(theme));
  document.addEventListener("DOMContentLoaded", () => {
    apply(theme);
    for (const button of document.querySelectorAll("[data-theme-switch]")) {
      button.addEventListener("click", () => {
        theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
        try {
          localStorage.setItem("flodl-theme", theme);
        } catch {
          // as above
        }
        apply(theme);
      });
    }
  });
})();
