// Lists that change while one looks at them.

import { find } from "./page.js";

export function followJobs(table) {
  const events = new EventSource(table.dataset.events);
  events.addEventListener("message", (event) => {
    for (const job of JSON.parse(event.data)) {
      const row = find(`[data-job="${job.id}"]`, table);
      if (!row && !("everyJob" in table.dataset)) continue; // the page of another job
      if (row?.dataset.state !== job.state) {
        events.close();
        location.reload();
        return;
      }
      const bar = find("progress", row); // none of a job that failed
      if (bar) bar.value = job.progress;
      find("[data-message]", row).textContent = job.message;
    }
  });
  window.addEventListener("pagehide", () => events.close());
}
