// What pages do beyond plain forms: keys, a closer look at the image, answers that survive a lost connection and an
// ended session, the read timer, live jobs. Every page works without it.

const find = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// Browsers may forbid storage; then nothing is remembered.
const store = {
  get(name, otherwise) {
    try {
      return JSON.parse(localStorage.getItem(`secondread.${name}`)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      if (value === null) localStorage.removeItem(`secondread.${name}`);
      else localStorage.setItem(`secondread.${name}`, JSON.stringify(value));
    } catch {
      /* not remembered */
    }
  },
};

function say(text, alert = false) {
  const status = find("[data-status]");
  if (!status) return;
  status.textContent = text;
  status.classList.toggle("alert", alert);
}

function signInLink() {
  const link = document.createElement("a");
  link.href = "/login";
  link.target = "_blank";
  link.textContent = "Sign in";
  return link;
}

function askToSignIn() {
  say("Sign in again, your answer is kept. ", true);
  find("[data-status]")?.append(signInLink());
}

// ---- keys -------------------------------------------------------------------------------------------------------

const writing = (target) => target.closest("textarea, select, input:not([type=radio], [type=checkbox], [type=range])");

// One action a button, choice or summary with a <kbd>; people may choose other keys, or none at all.
function actions() {
  const chosen = store.get("keys", {});
  return all("[data-action]").flatMap((element) => {
    const label = element.matches("input") ? element.closest("label") : element;
    const hint = find("kbd", label);
    if (!hint) return [];
    hint.dataset.usual ??= hint.textContent;
    hint.textContent = chosen[element.dataset.action] ?? hint.dataset.usual;
    return [{ name: element.dataset.action, element, hint, key: hint.textContent, usual: hint.dataset.usual }];
  });
}

// digits choose by position: among the classes, or the reasons of an open decline
function numbered(key, inside) {
  if (!/^[1-9]$/.test(key)) return undefined;
  const form = inside?.closest("form") ? null : inside;
  return all("input[type=radio]", form ?? find("form[data-answer]") ?? document)[Number(key) - 1];
}

function act(element) {
  if (element.matches("input[type=radio]")) {
    element.checked = true;
    element.focus();
    element.dispatchEvent(new Event("change", { bubbles: true }));
  } else if (element.matches("summary")) {
    const details = element.parentElement;
    details.open = !details.open;
    if (details.open) find("input:not([type=hidden]), button", details)?.focus();
    else element.focus();
  } else {
    element.click();
  }
}

function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Escape") {
      document.activeElement?.blur();
      return;
    }
    if (writing(event.target) || !store.get("keys-on", true)) return;
    // what has the focus answers to Enter by itself, except a choice, which would send the form without a look at it
    if (event.key === "Enter" && event.target.closest("button, a, summary")) return;
    if (event.target.matches("[type=range]") && event.key.startsWith("Arrow")) return;
    const inside = event.target.closest("details[open]");
    const found = actions().filter((one) => one.key.toLowerCase() === event.key.toLowerCase());
    const action = found.find((one) => inside?.contains(one.element)) ?? found[0];
    const element = action?.element ?? numbered(event.key, inside);
    if (element && element.offsetParent !== null) {
      event.preventDefault();
      act(element);
    }
  });
}

// In a group of radios the arrows would choose. Here they move the image where it is zoomed, else only the focus, and
// Space chooses.
function keepChoices() {
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step || !event.target.matches("input[type=radio][name=label]")) return;
    event.preventDefault();
    if (find(".viewer.zoomed")) return;
    const choices = all("input[type=radio][name=label]", event.target.form).filter((one) => one.offsetParent !== null);
    choices[(choices.indexOf(event.target) + step + choices.length) % choices.length].focus();
  });
}

function showKeys() {
  const box = find("[data-keys]");
  if (!box) return;
  const on = find("[data-keys-on]", box);
  const breaks = find("[data-breaks]", box);
  const list = find("[data-keys-list]", box);
  on.checked = store.get("keys-on", true);
  on.addEventListener("change", () => store.set("keys-on", on.checked));
  breaks.checked = store.get("breaks", false);
  breaks.addEventListener("change", () => store.set("breaks", breaks.checked));
  const draw = () => {
    list.replaceChildren(
      ...actions().map((action) => {
        const label = document.createElement("label");
        const input = document.createElement("input");
        label.className = "key-choice";
        input.value = action.key;
        input.size = 6;
        input.addEventListener("keydown", (event) => {
          if (event.key === "Tab" || event.key === "Escape") return;
          event.preventDefault();
          store.set("keys", { ...store.get("keys", {}), [action.name]: event.key });
          input.value = event.key;
          actions();
        });
        label.append(action.name, input);
        return label;
      }),
    );
  };
  find("[data-keys-reset]", box).addEventListener("click", () => {
    store.set("keys", null);
    draw();
  });
  draw();
}

// ---- the image --------------------------------------------------------------------------------------------------

function lookCloser(figure) {
  const image = find("img", figure);
  const view = { zoom: 1, x: 0, y: 0 };
  const filters = { brightness: 100, contrast: 100 };
  const pointers = new Map();
  const draw = () => {
    image.style.transform = `translate(${view.x}px, ${view.y}px) scale(${view.zoom})`;
    image.style.filter = `brightness(${filters.brightness}%) contrast(${filters.contrast}%)`;
    figure.classList.toggle("zoomed", view.zoom > 1);
  };
  const zoom = (factor, x = 0, y = 0) => {
    const next = factor === 0 ? 1 : Math.min(16, Math.max(1, view.zoom * factor));
    const ratio = next / view.zoom;
    view.x = next === 1 ? 0 : x - (x - view.x) * ratio;
    view.y = next === 1 ? 0 : y - (y - view.y) * ratio;
    view.zoom = next;
    draw();
  };
  const fromCentre = (event) => {
    const box = figure.getBoundingClientRect();
    return [event.clientX - box.left - box.width / 2, event.clientY - box.top - box.height / 2];
  };
  image.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15, ...fromCentre(event));
  });
  image.addEventListener("dblclick", (event) => zoom(view.zoom > 1 ? 0 : 3, ...fromCentre(event)));
  image.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event);
    image.setPointerCapture(event.pointerId);
  });
  image.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const other = [...pointers.values()].find((one) => one.pointerId !== event.pointerId);
    if (other) {
      const distance = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
      zoom(distance(event) / Math.max(1, distance(before)), ...fromCentre(other));
    } else if (view.zoom > 1) {
      view.x += event.clientX - before.clientX;
      view.y += event.clientY - before.clientY;
      draw();
    }
    pointers.set(event.pointerId, event);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    image.addEventListener(end, (event) => pointers.delete(event.pointerId));
  }
  document.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    const step = steps[event.key];
    if (!step || view.zoom === 1 || event.target.matches("input:not([type=radio]), select, textarea")) return;
    event.preventDefault();
    view.x += step[0];
    view.y += step[1];
    draw();
  });
  for (const button of all("[data-zoom]", figure)) {
    button.addEventListener("click", () => zoom(Number(button.dataset.zoom)));
  }
  for (const range of all("[data-filter]", figure)) {
    range.addEventListener("input", () => {
      filters[range.dataset.filter] = range.value;
      draw();
    });
  }
}

// ---- answers that are sent once, whatever the network and the session do -----------------------------------------

const RETRY_MS = 2000;
const SIGNED_OUT_RETRY_MS = 10000;
const account = document.body.dataset.account ?? "";

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

function waiting() {
  const inMemory = Object.fromEntries([...drafts].map(([handle, draft]) => [handle, draft.get("label")]));
  return Object.entries({ ...inMemory, ...outbox.of(account) });
}

function sendAgain(after) {
  clearTimeout(again);
  again = setTimeout(send, after);
}

// The service stores one answer per read, so an unknown outcome may simply be sent again.
async function send() {
  if (sending || !account) return;
  sending = true;
  try {
    const tried = new Set();
    for (let next; (next = waiting().find((entry) => !tried.has(entry.join()))); ) {
      tried.add(next.join());
      await deliver(...next);
    }
  } finally {
    sending = false;
  }
}

const post = (action, body) =>
  fetch(action, { method: "POST", headers: { Accept: "application/json" }, body, redirect: "manual" });

// What the service says of itself that it refused for good; a portal or proxy in between says nothing like it.
async function refusal(answer) {
  if (![400, 404, 409, 422].includes(answer.status)) return null;
  const problem = await answer.json().catch(() => null);
  return problem?.type?.startsWith("urn:secondread:problem:") ? problem.detail : null;
}

// Only an answer of the service that settles it, stored or refused for good, takes an entry away.
async function deliver(handle, label) {
  const draft = drafts.get(handle);
  const body = draft?.get("label") === label ? draft : new URLSearchParams({ label });
  const answer = await post(`/reads/${handle}/label`, body).catch(() => null);
  if (answer?.status === 401 || answer?.status === 403) {
    askToSignIn();
    sendAgain(SIGNED_OUT_RETRY_MS);
    return;
  }
  const refused = answer && (await refusal(answer));
  if (answer?.status !== 204 && refused === null) {
    say("No connection. Your answer is kept here and will be sent as soon as there is one.", true);
    sendAgain(RETRY_MS);
    return;
  }
  outbox.take(handle, label);
  drafts.delete(handle);
  const form = find(`form[data-answer="${handle}"]`);
  if (refused !== null) {
    say(refused, true);
    release();
  } else if (form) {
    location.assign(form.dataset.next);
  } else {
    say("Your answer is stored.");
  }
}

// Declines rest nowhere: they are sent while the page is open.
async function sendForm(form) {
  const answer = await post(form.getAttribute("action"), new URLSearchParams(new FormData(form))).catch(() => null);
  if (answer?.status === 204) {
    location.assign(form.dataset.next);
    return;
  }
  const refused = answer && (await refusal(answer));
  if (answer?.status === 401 || answer?.status === 403) say("Sign in again, then decline once more.", true);
  else say(refused ?? "No connection. Decline once more when there is one.", true);
  release();
}

// While an answer or a decline is under way nothing else is sent.
const SENDERS = "[data-answer] button, [data-send] button";

function release() {
  for (const button of all(SENDERS)) button.disabled = false;
}

function keepAnswers() {
  for (const form of all("[data-answer], [data-send]")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const handle = form.dataset.answer;
      if (handle) {
        const draft = new URLSearchParams(new FormData(form));
        drafts.set(handle, draft);
        outbox.put(handle, draft.get("label"));
        send();
      } else {
        sendForm(form);
      }
      for (const button of all(SENDERS)) button.disabled = true;
    });
  }
  for (const link of all("[data-action=back]")) {
    link.addEventListener("click", (event) => {
      if (!drafts.size) return;
      event.preventDefault();
      say("Your answer is on its way. Go back when it has arrived.", true);
    });
  }
  window.addEventListener("online", send);
  window.addEventListener("focus", send);
  if (!account && Object.keys(outbox.of(null)).length) {
    say("An answer is kept in this browser. It is sent when the person who gave it signs in.");
  }
  if (waiting().length) {
    say("One of your answers has not been sent yet; sending it now.");
    send();
  }
}

// ---- time ---------------------------------------------------------------------------------------------------------

const WARNED_MS = 60000;

function keepTime(page) {
  const timer = find("[data-timer]");
  const begun = Date.now();
  setInterval(() => {
    const seconds = Math.floor((Date.now() - begun) / 1000);
    timer.textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
  }, 1000);
  if (page.dataset.readId) keepLease(page.dataset.readId, 1000 * Number(page.dataset.lease), begun);
}

// When somebody was here last: only that extends leases and sessions.
let sign = Date.now();
for (const kind of ["keydown", "pointerdown", "pointermove", "wheel"]) {
  document.addEventListener(kind, () => (sign = Date.now()), { passive: true });
}

// A session lives by requests, of other tabs too. A person who reads on without any keeps it by a sign.
const tabs = new BroadcastChannel("secondread");
let used = Date.now();

function use() {
  used = Date.now();
  tabs.postMessage(account);
}

function keepSession(page) {
  const [idle, longest] = [1000 * Number(page.dataset.idle), Date.now() + 1000 * Number(page.dataset.rest)];
  const shown = find("[data-session]");
  let [asked, told] = [0, ""];
  const tell = (text, ...more) => {
    if (told !== text) shown.replaceChildren(text, ...more);
    told = text;
  };
  const ask = async () => {
    asked = Date.now();
    const answer = await fetch("/session").catch(() => null);
    if (answer?.ok) use();
  };
  tabs.addEventListener("message", (event) => event.data === account && (used = Date.now()));
  use();
  setInterval(() => {
    const [now, end] = [Date.now(), Math.min(used + idle, longest)];
    if (sign > Math.max(used, asked) && (now - used > idle / 3 || told)) ask();
    if (end - now > WARNED_MS) tell("");
    else if (end - now < -WARNED_MS) tell("You have been signed out. What you have chosen stays on this page. ", signInLink());
    else if (longest === end) tell("Your session of twelve hours ends in about a minute. Sign in again soon.");
    else tell("You will be signed out in about a minute, unless you go on.");
  }, 1000);
}

// Every request counts as use of the session.
function keepLease(read, lease, begun) {
  let [asked, ends, warned] = [0, begun + lease, false];
  const handle = find("form[data-answer]")?.dataset.answer;
  // once the answer is given, what becomes of it is what matters
  const tell = (text, alert) => waiting().some(([given]) => given === handle) || say(text, alert);
  const beat = async () => {
    asked = Date.now();
    const answer = await fetch(`/v1/reads/${read}`, { method: "PATCH" }).catch(() => null);
    if (answer?.ok) {
      use();
      const until = Date.parse((await answer.json()).expires_at) - Date.parse(answer.headers.get("Date"));
      if (warned && until > WARNED_MS) tell("");
      [ends, warned] = [asked + until, false];
    }
    if ([401, 403, 404].includes(answer?.status)) tell("Sign in again to go on with this case.", true);
    if (answer?.status === 409) ends = 0;
  };
  setInterval(() => {
    const left = ends - Date.now();
    if (find(SENDERS)?.disabled) return;
    if (sign > asked && Date.now() - asked > lease / 3 && left > 0) {
      beat();
    } else if (left <= 0 && warned !== "ended") {
      warned = "ended";
      tell("Your time with this case ran out, and it went back. Your answer is still taken; if somebody else has the case by then, it is kept as late.", true);
    } else if (left > 0 && left < Math.min(WARNED_MS, lease / 3) && !warned) {
      warned = true;
      tell("This case goes back in less than a minute, unless you go on with it.", true);
    }
  }, 1000);
}

const BREAK_MS = 45 * 60 * 1000;

function remindOfBreaks() {
  if (!store.get("breaks", false)) return;
  const begun = store.get("begun", Date.now());
  const idle = Date.now() - store.get("seen", 0) > 10 * 60 * 1000;
  store.set("begun", idle ? Date.now() : begun);
  store.set("seen", Date.now());
  if (!idle && Date.now() - begun > BREAK_MS) {
    say("You have been reading for 45 minutes. A short break keeps your eyes fresh.");
    store.set("begun", Date.now());
  }
}

// ---- lists --------------------------------------------------------------------------------------------------------

function searchChoices(input) {
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    for (const group of all(".group", input.closest("fieldset"))) {
      const heading = find(".group-name", group)?.textContent ?? "";
      const choices = all(".choice", group);
      for (const choice of choices) {
        choice.hidden = !`${heading} ${find("span", choice).textContent}`.toLowerCase().includes(wanted);
      }
      group.hidden = choices.every((choice) => choice.hidden);
    }
  });
}

function followJobs(table) {
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
      find("progress", row).value = job.progress;
      find("[data-message]", row).textContent = job.message;
    }
  });
  window.addEventListener("pagehide", () => events.close());
}

document.documentElement.classList.add("js");
if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
  for (const chart of all("svg.bars")) chart.setCurrentTime(10);
}
listenToKeys();
keepChoices();
actions();
showKeys();
for (const figure of all("[data-viewer]")) lookCloser(figure);
keepAnswers();
for (const page of all("[data-read]")) keepTime(page);
for (const page of all("body[data-idle]")) keepSession(page);
remindOfBreaks();
for (const input of all("[data-search]")) searchChoices(input);
for (const table of all("[data-events]")) followJobs(table);
if (find("[data-read], [data-action=next]")) fetch("/reads/upcoming").catch(() => null); // only pixels, for the cache
