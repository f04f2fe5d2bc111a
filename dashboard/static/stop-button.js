// Stop asks twice: the first press changes its word, the second one within some seconds stops the run.
import { byId } from "./elements.js";
import { isLive } from "./run-header.js";

const SURE_MS = 5000;

export function bindStop(runId) {
  const button = byId("stop");
  let timer = null;
  let asked = false;

  function calm() {
    clearTimeout(timer);
    timer = null;
    button.textContent = "Stop";
  }

  async function stop() {
    calm();
    asked = true;
    button.disabled = true;
    button.textContent = "Stopping";
    try {
      const response = await fetch(`/api/runs/${runId}/cancel`, { method: "POST" });
      if (!response.ok) throw new Error((await response.json()).detail);
    } catch (error) {
      asked = false;
      button.disabled = false;
      button.textContent = "Stop";
      button.title = `Could not be stopped: ${error.message}`;
    }
  }

  button.addEventListener("click", () => {
    if (timer !== null) {
      stop();
      return;
    }
    button.textContent = "Stop for good?";
    timer = setTimeout(calm, SURE_MS);
  });

  return {
    show(run) {
      button.hidden = !isLive(run);
      if (run.cancel_requested_at && !asked) {
        asked = true;
        button.disabled = true;
        button.textContent = "Stopping";
      }
    },
  };
}
