// Cases of the reading page: the one that the service has drawn, and what is known of those after it.

import { busy, post, tellUnlessWaiting, waiting } from "./answers.js";
import { find } from "./page.js";
import { keepTime, Leases } from "./time.js";
import { t } from "./words.js";

// A page of one case: the time on it, and its lease.
export function keepCase(page) {
  const leases = new Leases(Number(page.dataset.lease), busy, tellUnlessWaiting);
  if (page.dataset.readId) {
    leases.hold(page.dataset.readId, undefined, 0);
    leases.show(page.dataset.readId);
  }
  const restart = keepTime(find("[data-timer]"));
  return { leases, restart };
}

// The case that the server has drawn into the page.
export function drawn(page, form) {
  return {
    answer: form.dataset.answer,
    read: page.dataset.readId,
    case: page.dataset.case,
    number: page.dataset.number,
    mpp: find(".viewer", page).dataset.mpp,
    field: find(".viewer", page).dataset.around,
    image: find(".viewer img", page),
    answers: [], // classes that were given, of which each replaces the one before
    displayed: true, // the service knows that it is being read
  };
}

export const labelOf = (one) => one.answers.at(-1) ?? "";

// Place of an answer in its chain by its name: see answers.js.
export const placeOf = (name) => Number(name.split(".")[2] ?? -1);

// Answers of before the page was loaded anew that have not arrived yet, the oldest first.
export function keptOf(handle) {
  const own = waiting().filter(([name]) => name === handle || name.startsWith(`${handle}.`));
  return own.toSorted(([one], [other]) => placeOf(one) - placeOf(other)).map(([, label]) => label);
}

const RETRY_MS = 2000;
// An image that came whole so often and still cannot be drawn is broken.
const TRIES = 2;
const undrawable = new Map();

// The image of a case, decoded: none while it does not come, and the mark of a broken one where it cannot be drawn.
export async function imageOf({ image: url, number, read }) {
  const image = new Image();
  image.src = url;
  image.alt = t("Image of cell {number}", { number });
  image.draggable = false;
  try {
    await image.decode();
    return { image, broken: false };
  } catch {
    const came = await fetch(url)
      .then(async (reply) => reply.ok && (await reply.blob()).size > 0)
      .catch(() => false);
    const failed = (undrawable.get(read) ?? 0) + (came ? 1 : 0);
    undrawable.set(read, failed);
    return failed < TRIES ? { image: null, broken: false } : { image, broken: true };
  }
}

// Tell the service that a case is shown, until it knows. `still` is whether it is.
export async function noteDisplay(one, still) {
  if (one.displayed) return;
  one.displayed = true;
  const since = performance.now();
  for (;;) {
    const seconds_ago = ((performance.now() - since) / 1000).toFixed(1);
    const reply = await post(`/reads/${one.answer}/display`, new URLSearchParams({ seconds_ago })).catch(() => null);
    if (reply && reply.status < 500) return;
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    if (!still()) return;
  }
}

// How far the day is, as the service counts it.
export function drawDay(today, left) {
  const day = find("[data-day]");
  if (!day) return;
  find("progress", day).max = today + left || 1;
  find("progress", day).value = today;
  find("[data-day-text]", day).textContent = t("{n} of {total} today", { n: today, total: today + left });
}
