// What the pages of a lead share: times of the reader's own clock, the way back, questions before what is not meant by
// chance, and lists that narrow as one types. Without it the pages say the same in UTC, and ask on a page of their own.

import { t } from "./words.js";

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const two = (number) => String(number).padStart(2, "0");

/** Time of a moment on the reader's clock, as the pages write times. */
export function localTime(moment) {
  const day = [moment.getFullYear(), two(moment.getMonth() + 1), two(moment.getDate())].join("-");
  return `${day} ${two(moment.getHours())}:${two(moment.getMinutes())}`;
}

function offset(moment) {
  const minutes = -moment.getTimezoneOffset();
  return `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
}

function showLocalTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    time.title = `${zone || t("local time")}, ${offset(moment)}; ${time.textContent}`;
    time.textContent = localTime(moment);
  }
}

showLocalTimes(document);
new MutationObserver((changes) => {
  for (const change of changes) for (const node of change.addedNodes) if (node.nodeType === Node.ELEMENT_NODE) showLocalTimes(node);
}).observe(document.body, { childList: true, subtree: true });

const finder = document.querySelector("[data-find]");
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || !finder || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select, dialog")) return;
  event.preventDefault();
  finder.focus();
});

document.querySelector("[aria-invalid=true]")?.focus(); // what was refused may stand far below

document.querySelector("[data-back]")?.addEventListener("click", (event) => {
  if (history.length > 1) {
    event.preventDefault();
    history.back();  // the browser keeps what was typed
  }
});

for (const search of document.querySelectorAll("[data-narrows]")) {
  const rows = [...document.querySelectorAll(search.dataset.narrows)];
  const told = document.querySelector("[data-narrowed]");
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLocaleLowerCase();
    for (const row of rows) row.hidden = !row.dataset.text.toLocaleLowerCase().includes(wanted);
    const shown = rows.filter((row) => !row.hidden).length;
    if (told) told.textContent = wanted ? t("{n} of {total} shown", { n: shown, total: rows.length }) : "";
  });
}

// One box ticks all of a page, Shift a range; the number of those that are ticked stands next to what is done to them.
for (const whole of document.querySelectorAll("[data-check-all]")) {
  const boxes = [...whole.form.querySelectorAll("input[type=checkbox]:not([data-check-all])")];
  const [told, bar] = [whole.form.querySelector("[data-checked]"), whole.form.querySelector("[data-bulk]")];
  let last = 0;
  const count = () => {
    const n = boxes.filter((box) => box.checked).length;
    whole.checked = n === boxes.length;
    whole.indeterminate = n > 0 && !whole.checked;
    told.textContent = t("{n} selected", { n });
    bar.hidden = n === 0;
  };
  whole.hidden = false;
  whole.addEventListener("change", () => {
    for (const box of boxes) box.checked = whole.checked;
    count();
  });
  boxes.forEach((box, place) => box.addEventListener("click", (event) => {
    const [from, to] = [Math.min(last, place), Math.max(last, place)];
    if (event.shiftKey) for (const other of boxes.slice(from, to + 1)) other.checked = box.checked;
    last = place;
    count();
  }));
  count();
}
