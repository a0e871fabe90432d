// Reading without leaving the page: one key answers, the next image is there at once and in the same place, and the
// answer is stored behind it. Without this module each case is a page of its own.

import { busy, give, hooks as answerHooks, post, refusal, tellUnlessWaiting, waiting } from "./answers.js";
import { hooks as keyHooks } from "./keyboard.js";
import { HOLD_MS, LEVELS, levelAfter } from "./keys.js";
import { account, all, askToSignIn, find, say, store } from "./page.js";
import { keepTime, Leases } from "./time.js";

// As many as the service gives: the case that is shown, and two ahead.
const AHEAD = 2;
// As many as an answer may be left behind and still be corrected.
const BEHIND = 10;
const RETRY_MS = 2000;
// For so long a key that gives a case away for good may be taken back.
const REGRET_MS = 5000;

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
function drawn(page, form) {
  return {
    answer: form.dataset.answer,
    read: page.dataset.readId,
    case: page.dataset.case,
    number: page.dataset.number,
    mpp: find(".viewer", page).dataset.mpp,
    image: find(".viewer img", page),
    label: "", // the class that was given; empty while there is none
    given: 0, // answers so far, of which each replaces the one before
    displayed: true, // the service knows that it is being read
  };
}

async function decoded(url, number) {
  const image = new Image();
  image.src = url;
  image.alt = `Cell image of case ${number}`;
  image.draggable = false;
  await image.decode();
  return image;
}

// How far the day is, as the service counts it.
function drawDay(today, left) {
  const day = find("[data-day]");
  if (!day) return;
  find("progress", day).max = today + left || 1;
  find("progress", day).value = today;
  find("[data-day-text]", day).textContent = `${today} of ${today + left} today`;
}

export function readOn(page, viewer, { leases, restart }) {
  const form = find("form[data-answer]", page);
  const decline = find("[data-decline]", page);
  const heading = find("[data-heading]");
  const radios = all("input[name=label]", form);
  const name = (code) => find("span", radios.find((one) => one.value === code)?.closest("label"))?.textContent ?? code;

  // Cases in the order in which they are read: those behind `place` are answered, those after it are ahead.
  const line = [drawn(page, form)];
  let place = 0;
  const seen = new Set(line.map((one) => one.read)); // what has a place in the line, or had one
  let shown = line[0]; // null while the next case is on its way
  let filling = false;
  let refill;
  let none = false; // the service has no further case
  let regretted = null; // what is sent unless it is taken back
  let held = null; // the key of a class that is down
  let pending = false; // a class is chosen by Shift: how sure, and a second choice, may follow

  const now = () => line[place];
  const ahead = () => line.slice(place + 1).filter((one) => !one.label);

  // ---- what comes next

  async function fill() {
    clearTimeout(refill);
    if (filling || ahead().length >= AHEAD) return;
    filling = true;
    try {
      const reply = await post("/reads/ahead", new URLSearchParams({ account })).catch(() => null);
      if (reply?.status === 401 || reply?.status === 403 || reply?.type === "opaqueredirect") {
        if (!waiting().length) askToSignIn("Sign in again to go on reading. ");
        refill = setTimeout(fill, RETRY_MS * 5);
        return;
      }
      if (!reply?.ok) {
        if (!shown) say((reply && (await refusal(reply))) ?? "No connection. The next case comes as soon as there is one.", true);
        refill = setTimeout(fill, RETRY_MS);
        return;
      }
      const { reads, n_today: today, n_waiting: left } = await reply.json();
      const fresh = reads.filter((one) => !seen.has(one.read));
      // those that are answered here and not yet stored there are still held, and say that more may come
      none = !reads.length && !ahead().length;
      for (const one of fresh) {
        const image = await decoded(one.image, one.number).catch(() => null);
        if (!image) {
          refill = setTimeout(fill, RETRY_MS); // its image did not come: it is asked for again
          continue;
        }
        leases.hold(one.read, 1000 * one.lease_seconds);
        seen.add(one.read);
        line.push({ ...one, image, label: "", given: 0 });
      }
      drawDay(today, left);
      if (!fresh.length && reads.length && !ahead().length) refill = setTimeout(fill, RETRY_MS);
    } finally {
      filling = false;
    }
    if (!shown && now()) show();
    else if (!shown && none) leave();
  }

  // Everything is read. What is on its way arrives first.
  function leave() {
    if (waiting().length || regretted) {
      say("That was the last case. Your last answers are on their way.");
      return;
    }
    location.assign("/worklist");
  }

  // ---- one case

  function show() {
    const one = now();
    shown = one ?? null;
    const enabled = Boolean(one);
    for (const part of all("fieldset, button", form)) part.disabled = !enabled;
    if (decline) decline.hidden = !enabled || Boolean(one.label);
    pending = false;
    held = null;
    if (!one) {
      find(".viewer img", page).style.visibility = "hidden";
      heading.textContent = "The next case is on its way";
      if (none) leave();
      return;
    }
    one.image.style.visibility = "";
    viewer.show(one.image, one.mpp);
    page.dataset.readId = one.read;
    page.dataset.case = one.case;
    form.reset();
    for (const details of all("details", form)) details.open = false;
    const handle = one.given ? `${one.answer}.${one.given - 1}` : one.answer;
    form.dataset.answer = handle;
    form.setAttribute("action", `/reads/${handle}/label`);
    if (decline) {
      decline.open = false;
      for (const other of all("form", decline)) {
        other.reset();
        other.setAttribute("action", `/reads/${one.answer}/${other.dataset.kind}`);
      }
      find("[name=form_key]", decline).value = crypto.randomUUID?.().replaceAll("-", "") ?? `${one.read.replaceAll("-", "")}`;
    }
    for (const radio of radios) radio.checked = radio.value === one.label;
    heading.replaceChildren(`Case ${one.number} `, Object.assign(document.createElement("span"), { className: "muted", textContent: one.label ? "correct your answer, still blind" : "blind read" }));
    history.replaceState(null, "", `/cases/${one.case}`); // loaded anew, the page shows the same case
    document.title = `Read case ${one.number} · secondread`;
    showBack();
    told("");
    leases.show(one.read);
    restart();
    if (!one.displayed) post(`/reads/${one.answer}/display`, new URLSearchParams()).catch(() => null);
    one.displayed = true;
    document.activeElement?.blur();
  }

  function showBack() {
    const link = find("[data-previous]", page);
    link.hidden = !(place > 0 || regretted || link.hasAttribute("href"));
  }

  const told = (text) => (find("[data-choice]", page).textContent = text);

  function move(step) {
    place += step;
    while (place > BEHIND) {
      leases.drop(line[0].read);
      line.shift();
      place -= 1;
    }
    // while nobody was here the cases ahead went back: they may be with somebody else
    while (now() && !now().label && !leases.lasts(now().read)) seen.delete(line.splice(place, 1)[0].read);
    show();
    fill();
  }

  // ---- answers

  function answer(label, confidence) {
    const one = now();
    if (!one) return;
    settle();
    radios.find((radio) => radio.value === label).checked = true;
    if (confidence !== undefined && confidence !== null) form.elements.confidence.value = String(confidence);
    const draft = new URLSearchParams(new FormData(form));
    const unchanged = one.label === label && !draft.get("note") && !draft.get("confidence") && !draft.get("second_choice");
    if (!one.given || !unchanged) {
      const handle = form.dataset.answer;
      one.given += 1;
      one.label = label;
      leases.drop(one.read);
      give(handle, draft);
    }
    move(1);
  }

  answerHooks.settled = () => {
    fill();
    if (!shown && none) leave();
  };

  // A case that cannot be told is given away for good: it is sent when the next thing is done, or after a while, and
  // can be taken back until then.
  function giveAway(reason) {
    const one = now();
    if (!one || one.label) return;
    settle();
    const body = new URLSearchParams({ reason, form_key: `${crypto.randomUUID?.() ?? one.read}`.replaceAll("-", "") });
    regretted = { one, body, timer: setTimeout(settle, REGRET_MS) };
    say("Cannot tell. Backspace takes it back.");
    line.splice(place, 1);
    leases.drop(one.read);
    move(0);
  }

  // What could be taken back until now is sent.
  async function settle() {
    if (!regretted) return;
    const { one, body, timer } = regretted;
    clearTimeout(timer);
    regretted = null;
    showBack();
    const reply = await fetch(`/reads/${one.answer}/decline`, { method: "POST", headers: { Accept: "application/json" }, body, redirect: "manual", keepalive: true }).catch(() => null);
    const refused = reply && (await refusal(reply));
    if (reply?.status === 204) say("");
    else if (refused) say(refused, true);
    else {
      seen.delete(one.read);
      say(`Case ${one.number} could not be given away. It comes back to you.`, true);
    }
    fill();
    if (!shown && none) leave();
  }

  function back(event) {
    if (regretted) {
      event?.preventDefault();
      clearTimeout(regretted.timer);
      line.splice(place, 0, regretted.one);
      leases.hold(regretted.one.read);
      regretted = null;
      say("");
      show();
    } else if (place > 0) {
      event?.preventDefault();
      move(-1);
    } else if (waiting().length) {
      event?.preventDefault();
      say("Your answer is on its way. Go back when it has arrived.", true);
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const label = new FormData(form).get("label");
    if (label) answer(label);
  });
  find("[data-previous]", page).addEventListener("click", back);
  if (decline) {
    find("form[data-send]", decline).addEventListener("submit", async (event) => {
      event.preventDefault();
      const [one, sent] = [now(), event.target];
      const reply = await post(sent.getAttribute("action"), new URLSearchParams(new FormData(sent))).catch(() => null);
      const refused = reply && (await refusal(reply));
      if (reply?.status === 204) {
        const at = line.indexOf(one);
        line.splice(at, 1);
        leases.drop(one.read);
        if (at === place) move(0);
        say("Declined.");
      } else if (reply?.status === 401 || reply?.status === 403) say("Sign in again, then decline once more.", true);
      else say(refused ?? "No connection. Decline once more when there is one.", true);
    });
  }
  find("[data-action='cannot tell']", page)?.addEventListener("click", () => giveAway("cannot_tell"));

  // ---- keys of classes: a tap answers; held, it says how sure; with Shift it waits for more

  const level = () => levelAfter(performance.now() - held.since);

  function showLevel() {
    if (!held) return;
    const found = level();
    told(found ? `${name(held.radio.value)}: ${found[1]}` : name(held.radio.value));
    held.timer = setTimeout(showLevel, HOLD_MS / 4);
  }

  function letGo() {
    clearTimeout(held?.timer);
    held = null;
  }

  keyHooks.choose = (radio, event) => {
    if (!now()) return;
    if (pending && !event.shiftKey) {
      const first = radios.find((one) => one.checked);
      if (first === radio) return answer(radio.value);
      form.elements.second_choice.value = radio.value;
      told(`${name(first.value)}, else ${name(radio.value)} – 1 to 4: how sure, Enter: go on`);
      return;
    }
    radio.checked = true;
    if (event.shiftKey) {
      pending = true;
      told(`${name(radio.value)} – 1 to 4: how sure, another class: second choice, Enter: go on`);
      return;
    }
    if (!store.get("one-key", true) || event.key === "Enter" || event.type !== "keydown") {
      if (event.key === "Enter" && store.get("one-key", true)) answer(radio.value);
      else told(name(radio.value));
      return;
    }
    letGo();
    held = { code: event.code, radio, since: performance.now(), timer: 0 };
    showLevel();
  };

  // While a class waits for more, the digits say how sure, before anything else listens.
  document.addEventListener(
    "keydown",
    (event) => {
      if (!pending || !/^[1-4]$/.test(event.key) || event.target.closest("textarea, input:not([type=radio])")) return;
      event.preventDefault();
      event.stopPropagation();
      answer(radios.find((one) => one.checked).value, LEVELS[Number(event.key) - 1][0]);
    },
    true,
  );
  document.addEventListener("keyup", (event) => {
    if (!held || event.code !== held.code) return;
    const [radio, found] = [held.radio, level()];
    letGo();
    answer(radio.value, found?.[0]);
  });
  // a key that is let go somewhere else has not answered: the choice stays, and Enter sends it
  window.addEventListener("blur", letGo);
  window.addEventListener("pagehide", settle);

  showBack();
  fill();
}
