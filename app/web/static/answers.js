// Answers that are sent once, whatever the network and the session do.

import { account, all, askToSignIn, endNotice, find, say } from "./page.js";
import { t } from "./words.js";

const RETRY_MS = 2000;
const SIGNED_OUT_RETRY_MS = 10000;

// What rests in the browser: for each account and read the class, nothing else. One entry each, so that two tabs do
// not overwrite what the other one keeps.
const OUTBOX = "secondread.outbox.";
const outbox = {
  of(owner) {
    const found = {};
    try {
      for (const key of Object.keys(localStorage)) {
        const [owned, ...handle] = key.startsWith(OUTBOX) ? key.slice(OUTBOX.length).split(".") : [];
        if (owned && (owner === null || owned === owner)) found[handle.join(".")] = localStorage.getItem(key);
      }
    } catch {
      /* storage is forbidden: the page remembers for as long as it is open */
    }
    return found;
  },
  put(handle, label) {
    try {
      localStorage.setItem(`${OUTBOX}${account}.${handle}`, label);
    } catch {
      /* likewise */
    }
  },
  take(handle, label) {
    const key = `${OUTBOX}${account}.${handle}`;
    try {
      if (localStorage.getItem(key) === label) localStorage.removeItem(key);
    } catch {
      /* likewise */
    }
  },
};

// Whole forms of this page: while it is open, confidence and note go with the class.
const drafts = new Map();
let sending = false;
let again;

// What a page does once an answer is settled, in place of going where its form leads: see reading.js.
export const hooks = { settled: null };

// What another tab has the whole form of, that tab sends: here it would go without its note.
const tabs = new BroadcastChannel("secondread.outbox");
const ELSEWHERE_MS = 200;
const elsewhere = new Set();
tabs.addEventListener("message", ({ data: { asked, mine } }) => {
  if (mine) elsewhere.add(mine);
  else if (drafts.has(asked)) tabs.postMessage({ mine: asked });
});

async function isElsewhere(handle) {
  tabs.postMessage({ asked: handle });
  await new Promise((resolve) => setTimeout(resolve, ELSEWHERE_MS));
  return elsewhere.delete(handle);
}

export function waiting() {
  const inMemory = Object.fromEntries([...drafts].map(([handle, draft]) => [handle, draft.get("label")]));
  return Object.entries({ ...inMemory, ...outbox.of(account) });
}

// A correction is named READ.TAG.PLACE: it can only be stored after the answers that it follows.
function mayGo([handle], others) {
  const [read, tag, place] = handle.split(".");
  if (place === undefined) return true;
  return !others.some(([other]) => {
    const [otherRead, otherTag, otherPlace = -1] = other.split(".");
    return otherRead === read && otherTag === tag && Number(otherPlace) < Number(place);
  });
}

function sendAgain(after) {
  clearTimeout(again);
  again = setTimeout(send, after);
}

// The service stores one answer per read, so an unknown outcome may simply be sent again.
export async function send() {
  if (sending || !account) return;
  sending = true;
  try {
    const tried = new Set();
    const untried = () => waiting().find((entry) => !tried.has(entry.join()) && mayGo(entry, waiting()));
    for (let next; (next = untried()); ) {
      tried.add(next.join());
      await deliver(...next);
    }
  } finally {
    sending = false;
  }
}

// Keep an answer and send it: `draft` is its form, of which the class is `label`.
export function give(handle, draft) {
  drafts.set(handle, draft);
  outbox.put(handle, draft.get("label"));
  return send();
}

export const post = (action, body) =>
  fetch(action, { method: "POST", headers: { Accept: "application/json" }, body, redirect: "manual" });

// What the service says of itself that it refused for good; a portal or proxy in between says nothing like it.
export async function refusal(answer) {
  if (![400, 404, 409, 422].includes(answer.status)) return null;
  const problem = await answer.json().catch(() => null);
  return problem?.type?.startsWith("urn:secondread:problem:") ? problem.detail : null;
}

// Only an answer of the service that settles it, stored or refused for good, takes an entry away.
async function deliver(handle, label) {
  const draft = drafts.get(handle);
  if (!draft && (await isElsewhere(handle))) {
    sendAgain(RETRY_MS);
    return;
  }
  const body = draft?.get("label") === label ? draft : new URLSearchParams({ label });
  const answer = await post(`/reads/${handle}/label`, body).catch(() => null);
  if (answer?.status === 401 || answer?.status === 403) {
    askToSignIn();
    sendAgain(SIGNED_OUT_RETRY_MS);
    return;
  }
  const refused = answer && (await refusal(answer));
  if (answer?.status !== 204 && refused === null) {
    say(t("No connection. Your answer is saved here and will be sent when you are back online."), true, "outbox");
    sendAgain(RETRY_MS);
    return;
  }
  outbox.take(handle, label);
  drafts.delete(handle);
  if (!waiting().length) endNotice("outbox");
  const form = find(`form[data-answer="${handle}"]`);
  if (refused !== null) {
    say(refused, true);
    release();
  } else if (!hooks.settled && form) {
    location.assign(form.dataset.next);
  } else if (!hooks.settled) {
    say(t("Your answer is stored."));
  }
  hooks.settled?.(handle, refused);
}

// Declines rest nowhere: they are sent while the page is open.
async function sendForm(form) {
  const answer = await post(form.getAttribute("action"), new URLSearchParams(new FormData(form))).catch(() => null);
  if (answer?.status === 204) {
    location.assign(form.dataset.next);
    return;
  }
  const refused = answer && (await refusal(answer));
  if (answer?.status === 401 || answer?.status === 403) say(t("Sign in again, then skip the cell."), true);
  else say(refused ?? t("No connection. Skip the cell when you are back online."), true);
  release();
}

// While an answer or a decline is under way nothing else is sent.
const SENDERS = "[data-answer] button, [data-send] button";

export const busy = () => Boolean(find(SENDERS)?.disabled);

function release() {
  for (const button of all(SENDERS)) button.disabled = false;
}

// Say something of a case, unless an answer waits: what becomes of that matters more.
export function tellUnlessWaiting(text, alert) {
  if (!waiting().length) say(text, alert);
}

function keepForms() {
  for (const form of all("[data-answer], [data-send]")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const draft = new URLSearchParams(new FormData(form));
      if (form.dataset.answer) give(form.dataset.answer, draft);
      else sendForm(form);
      for (const button of all(SENDERS)) button.disabled = true;
    });
  }
  for (const link of all("[data-action=back]")) {
    link.addEventListener("click", (event) => {
      if (!drafts.size) return;
      event.preventDefault();
      say(t("Your answer is being sent. Go back when it has arrived."), true);
    });
  }
}

// Whether the page reads on by itself: then reading.js listens to its forms.
export function keepAnswers(resident) {
  if (!resident) keepForms();
  window.addEventListener("online", send);
  window.addEventListener("focus", send);
  if (!account && Object.keys(outbox.of(null)).length) {
    say(t("This browser holds an answer from another person. It will be sent after that person signs in."));
  }
  if (waiting().length) {
    say(t("One of your answers has not been sent yet; sending it now."));
    send();
  }
}
