// Time on a case, leases and sessions: what only a sign of a person extends.

import { account, find, say, signInLink, store } from "./page.js";
import { t } from "./words.js";

const WARNED_MS = 60000;

// When somebody was here last: only that extends leases and sessions.
let sign = Date.now();
for (const kind of ["keydown", "pointerdown", "pointermove", "wheel"]) {
  document.addEventListener(kind, () => (sign = Date.now()), { passive: true });
}

export const isAway = () => Date.now() - sign > WARNED_MS;

// A session lives by requests, of other tabs too. A person who reads on without any keeps it by a sign.
const tabs = new BroadcastChannel("secondread");
let used = Date.now();

export function use() {
  used = Date.now();
  tabs.postMessage(account);
}

// Seconds on the case that is shown; gives what begins anew with the next one.
export function keepTime(timer) {
  let begun = Date.now();
  const draw = () => {
    const seconds = Math.floor((Date.now() - begun) / 1000);
    timer.textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
  };
  setInterval(draw, 1000);
  return () => {
    begun = Date.now();
    draw();
  };
}

export function keepSession(page) {
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
    else if (end - now < -WARNED_MS) tell(t("You have been signed out. Your choices stay on this page. "), signInLink());
    else if (longest === end) tell(t("Your session of twelve hours ends in about a minute. Sign in again soon."));
    else tell(t("You will be signed out in about a minute unless you continue."));
  }, 1000);
}

// The leases of a page: of the case that is shown, of which its person is told, and of those ahead.
//
// busy(): whether the answer to the case that is shown is under way. tell(text, alert): says what becomes of it.
export class Leases {
  constructor(seconds, busy, tell) {
    this.length = 1000 * seconds;
    this.held = new Map();
    this.shown = null;
    Object.assign(this, { busy, tell });
    setInterval(() => this.look(), 1000);
  }

  // A lease that ends in so many milliseconds; `asked` is when its time was last asked for.
  hold(read, left = this.length, asked = Date.now()) {
    if (!this.held.has(read)) this.held.set(read, { asked, ends: Date.now() + left, warned: false, given: new AbortController() });
  }

  // The read is answered or declined: a request for more time that is under way would meet a conflict.
  drop(read) {
    this.held.get(read)?.given.abort();
    this.held.delete(read);
  }

  // Whether a read is still its person's, as far as this page knows.
  lasts(read) {
    return (this.held.get(read)?.ends ?? 0) > Date.now();
  }

  show(read) {
    this.shown = read;
  }

  async beat(read) {
    const lease = this.held.get(read);
    const mine = () => read === this.shown; // when the answer comes another case may be shown
    lease.asked = Date.now();
    const answer = await fetch(`/v1/reads/${read}`, { method: "PATCH", signal: lease.given.signal }).catch(() => null);
    const renewed = answer?.ok && (await answer.json().catch(() => null));
    if (renewed) {
      use();
      const left = Date.parse(renewed.expires_at) - Date.parse(answer.headers.get("Date"));
      if (lease.warned && left > WARNED_MS && mine()) this.tell("");
      [lease.ends, lease.warned] = [lease.asked + left, false];
    }
    if ([401, 403, 404].includes(answer?.status) && mine()) this.tell(t("Sign in again to continue with this cell."), true);
    if (answer?.status === 409) lease.ends = 0;
  }

  look() {
    for (const [read, lease] of this.held) {
      const [left, mine] = [lease.ends - Date.now(), read === this.shown];
      if (mine && this.busy()) continue;
      if (sign > lease.asked && Date.now() - lease.asked > this.length / 3 && left > 0) {
        this.beat(read);
      } else if (mine && left <= 0 && lease.warned !== "ended") {
        lease.warned = "ended";
        this.tell(t("Your time for this cell has expired. You can still answer; if the cell is assigned to another annotator, your answer is saved as late."), true);
      } else if (mine && left > 0 && left < Math.min(WARNED_MS, this.length / 3) && !lease.warned) {
        lease.warned = true;
        this.tell(t("This cell will be returned in less than a minute unless you continue."), true);
      }
    }
  }
}

const BREAK_MS = 45 * 60 * 1000;

export function remindOfBreaks() {
  if (!store.get("breaks", false)) return;
  const begun = store.get("begun", Date.now());
  const idle = Date.now() - store.get("seen", 0) > 10 * 60 * 1000;
  store.set("begun", idle ? Date.now() : begun);
  store.set("seen", Date.now());
  if (!idle && Date.now() - begun > BREAK_MS) {
    say(t("You have been reading for 45 minutes. A short break keeps your eyes fresh."));
    store.set("begun", Date.now());
  }
}
