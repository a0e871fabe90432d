// What pages do beyond plain forms: keys, a closer look at the image, reading without leaving the page, answers that
// survive a lost connection and an ended session, the read timer, live jobs. Every page works without it.

import { keepAnswers } from "./answers.js";
import { keepCase } from "./cases.js";
import { placeMark } from "./comments.js";
import { keepChoices, listenToKeys, searchChoices, showKeys } from "./keyboard.js";
import { followJobs } from "./lists.js";
import { all, find } from "./page.js";
import { readOn } from "./reading.js";
import { showReferences } from "./references.js";
import { keepSession, remindOfBreaks } from "./time.js";
import { lookCloser } from "./viewer.js";

document.documentElement.classList.add("js");
const page = find("[data-read]");
const resident = Boolean(page?.hasAttribute("data-resident"));
listenToKeys();
keepChoices();
showKeys();
const [viewer] = all("[data-viewer]").map(lookCloser);
for (const details of all("[data-comment]")) placeMark(details, viewer);
keepAnswers(resident);
if (page) {
  const kept = keepCase(page);
  if (resident) readOn(page, viewer, kept);
}
for (const body of all("body[data-idle]")) keepSession(body);
remindOfBreaks();
for (const dialog of all("dialog[data-references]")) showReferences(dialog);
for (const input of all("[data-search]")) searchChoices(input);
for (const table of all("[data-events]")) followJobs(table);
if (!resident && find("[data-read], [data-action=next]")) fetch("/reads/upcoming").catch(() => null); // only pixels, for the cache
