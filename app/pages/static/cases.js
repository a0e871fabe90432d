// Cases of the reading page: the one that the service has drawn, and what is known of those after it.

import { busy, tellUnlessWaiting, waiting } from "./answers.js";
import { find } from "./page.js";
import { keepTime, Leases } from "./time.js";

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

export async function decoded(url, number) {
  const image = new Image();
  image.src = url;
  image.alt = `Cell image of case ${number}`;
  image.draggable = false;
  await image.decode();
  return image;
}

// How far the day is, as the service counts it.
export function drawDay(today, left) {
  const day = find("[data-day]");
  if (!day) return;
  find("progress", day).max = today + left || 1;
  find("progress", day).value = today;
  find("[data-day-text]", day).textContent = `${today} of ${today + left} today`;
}
