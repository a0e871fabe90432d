// Reading without leaving the page: one key answers, the next image is there at once and in the same place, and the
// answer is stored behind it. Without this module each case is a page of its own.

import { give, hooks as answerHooks, post, refusal, tellUnlessWaiting, waiting } from "./answers.js";
import { drawDay, drawn, imageOf, keptOf, labelOf, noteDisplay, placeOf } from "./cases.js";
import { forgetCode, hooks as keyHooks } from "./keyboard.js";
import { HOLD_MS, LEVELS, levelAfter } from "./keys.js";
import { account, all, askToSignIn, endNotice, find, say, store } from "./page.js";
import { isAway } from "./time.js";
import { t } from "./words.js";

// As many as the service gives: the case that is shown, and two ahead.
const AHEAD = 2;
// As many as an answer may be left behind and still be corrected.
const BEHIND = 10;
const RETRY_MS = 2000;
// For so long a key that gives a case away may be taken back, and the page stays after the last answer.
const REGRET_MS = 5000;
// A touch so soon after a case has come was meant for the case before.
const TOO_SOON_MS = 300;

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
  let [filling, refill] = [false, 0];
  let none = false; // the service has no further case
  let leaving; // runs while the last answer may still be corrected here
  let answered = null; // the case of the last answer, until something else is done
  let regretted = null; // what is sent unless it is taken back
  let held = null; // the key of a class that is down
  let pending = false; // a class is chosen by Shift: how sure, and a second choice, may follow
  let touched = false; // the last press was by a finger
  let since = 0; // when the case that is shown has come
  let undoing; // runs while what was done last can be undone by a button

  const now = () => line[place];
  const ahead = () => line.slice(place + 1).filter((one) => !labelOf(one));

  // ---- what comes next

  // Only while somebody is here: else it would keep their session alive, and lease cases to an empty chair.
  function fillLater(after) {
    clearTimeout(refill);
    refill = setTimeout(() => (isAway() ? fillLater(after) : fill()), after);
  }

  // The lease of a case ran out and was given anew: the case keeps its place.
  function takeUp(one, { read, answer: handle, lease_seconds: seconds }) {
    seen.add(read);
    leases.drop(one.read);
    if (labelOf(one)) return; // its answer finds the new lease by itself
    Object.assign(one, { read, answer: handle });
    leases.hold(read, 1000 * seconds);
    if (one === shown) address(one);
  }

  async function fill() {
    clearTimeout(refill);
    if (filling || ahead().length >= AHEAD) return;
    filling = true;
    try {
      const reply = await post("/reads/ahead", new URLSearchParams({ account })).catch(() => null);
      if (reply?.status === 401 || reply?.status === 403 || reply?.type === "opaqueredirect") {
        const problem = await reply.json().catch(() => null);
        if (problem?.type?.endsWith(":not-qualified")) say(problem.detail, true);
        else if (!waiting().length) askToSignIn(t("Sign in again to continue reading. "));
        fillLater(RETRY_MS * 5);
        return;
      }
      if (!reply?.ok) {
        const why = (reply && (await refusal(reply))) ?? t("No connection. The next cell will load when you are back online.");
        if (!shown) tellUnlessWaiting(why, true);
        fillLater(RETRY_MS);
        return;
      }
      const { reads, n_today: today, n_waiting: left, resident } = await reply.json();
      // the policy shows results after each answer by now: the case goes on as a page of its own
      if (resident === false && !waiting().length && !regretted && !pending && !held) return location.reload();
      const fresh = reads.filter((one) => !seen.has(one.read));
      // those that are answered here and not yet stored there are still held, and say that more may come
      none = !reads.length && !ahead().length;
      for (const one of fresh) {
        const same = line.find((other) => other.case === one.case);
        if (same) {
          takeUp(same, one);
          continue;
        }
        const { image, broken } = await imageOf(one);
        if (!image) {
          fillLater(RETRY_MS); // its image did not come: it is asked for again
          continue;
        }
        leases.hold(one.read, 1000 * one.lease_seconds);
        seen.add(one.read);
        line.push({ ...one, image, broken, answers: [] });
        if (!shown && now()) show();
      }
      drawDay(today, left);
      if (reads.length && !ahead().length) fillLater(RETRY_MS);
    } finally {
      filling = false;
    }
    if (!shown && none) leave();
  }

  // Everything is read. What is on its way arrives first, and a slip on the last case is noticed like any other.
  function leave() {
    clearTimeout(leaving);
    heading.textContent = document.title = t("That was the last cell");
    if (regretted) return; // its message says how to take that back
    if (waiting().length) return say(t("That was the last cell. Your last answers are being sent."));
    const correctable = answered === line[place - 1];
    if (correctable) offerUndo("answered", t("That was the last cell. You can still go back and correct it."));
    leaving = setTimeout(() => location.assign("/worklist"), correctable ? REGRET_MS : 0);
  }

  // ---- one case

  // What its forms answer.
  function address(one) {
    const position = one.answers.length - 1;
    const handle = position < 0 ? one.answer : `${one.answer}.${position}`;
    page.dataset.readId = one.read;
    form.dataset.answer = handle;
    form.setAttribute("action", `/reads/${handle}/label`);
    for (const other of decline ? all("form", decline) : []) other.setAttribute("action", `/reads/${one.answer}/${other.dataset.kind}`);
    leases.show(one.read);
  }

  function show() {
    const one = now();
    [shown, since] = [one ?? null, performance.now()];
    clearTimeout(leaving);
    const enabled = Boolean(one);
    for (const part of all("fieldset, button", form)) part.disabled = !enabled || (one.broken && !part.matches("[data-action='cannot tell']"));
    if (decline) decline.hidden = !enabled || Boolean(labelOf(one));
    pending = false;
    letGo();
    forgetCode();
    if (!one) {
      viewer.hide();
      showBack();
      heading.textContent = t("The next cell is loading");
      if (none) leave();
      return;
    }
    viewer.show(one);
    page.dataset.case = one.case;
    form.reset();
    for (const details of all("details", form)) details.open = false;
    address(one);
    if (decline) {
      decline.open = false;
      for (const other of all("form", decline)) other.reset();
      find("[name=form_key]", decline).value = crypto.randomUUID?.().replaceAll("-", "") ?? `${one.read.replaceAll("-", "")}`;
    }
    for (const radio of radios) radio.checked = radio.value === labelOf(one);
    heading.replaceChildren(`${t("Cell {number}", { number: one.number })} `, Object.assign(document.createElement("span"), { className: "muted", textContent: labelOf(one) ? t("correct your answer, still blinded") : t("blinded read") }));
    history.replaceState(null, "", `/cases/${one.case}`); // loaded anew, the page shows the same case
    document.title = `${t("Read cell {number}", { number: one.number })} · secondread`;
    showBack();
    told("");
    restart();
    noteDisplay(one, () => one === shown);
    if (one.broken) say(t("The image of cell {number} cannot be shown. Skip it or choose “Cannot tell”.", { number: one.number }), true);
    document.activeElement?.blur();
  }

  function showBack() {
    const link = find("[data-previous]", page);
    link.hidden = !(place > 0 || regretted || link.hasAttribute("href"));
  }

  // What is chosen, and below it what may follow.
  function told(text, hint = "") {
    find("[data-choice]", page).replaceChildren(...(text ? [text, Object.assign(document.createElement("span"), { textContent: hint })] : []));
  }

  function move(step) {
    place += step;
    while (place > BEHIND) {
      leases.drop(line[0].read);
      line.shift();
      place -= 1;
    }
    // while nobody was here the cases ahead went back: they may be with somebody else
    while (now() && !labelOf(now()) && !leases.lasts(now().read)) {
      const [gone] = line.splice(place, 1);
      seen.delete(gone.read);
      leases.drop(gone.read);
    }
    show();
    fill();
  }

  // ---- answers

  function answer(label, confidence) {
    const one = now();
    if (!one || one.broken) return;
    settle();
    endNotice("answered");
    const second = form.elements.second_choice;
    if (second.value === label) second.value = "";
    radios.find((radio) => radio.value === label).checked = true;
    if (confidence !== undefined && confidence !== null) form.elements.confidence.value = String(confidence);
    const draft = new URLSearchParams(new FormData(form));
    const more = ["note", "confidence", "second_choice", "flag"].some((field) => draft.get(field));
    if (labelOf(one) !== label || more) {
      const handle = form.dataset.answer;
      one.answers.push(label);
      leases.drop(one.read);
      give(handle, draft);
    }
    answered = one;
    move(1);
  }

  // An answer that is refused is not stored: its case has the answers of before, and without any it is read again.
  function notStored(handle) {
    const one = line.find((other) => handle === other.answer || handle.startsWith(`${other.answer}.`));
    const stored = placeOf(handle) + 1;
    if (!one || one.answers.length <= stored) return;
    one.answers.length = stored;
    answered = null;
    if (!stored) leases.hold(one.read);
    if (one === shown) show();
    else if (!stored) {
      takeOut(one);
      seen.delete(one.read);
    }
  }

  function takeOut(one) {
    const at = line.indexOf(one);
    if (at < 0) return;
    answered = null;
    line.splice(at, 1);
    leases.drop(one.read);
    if (at < place) place -= 1;
    if (one === shown) move(0);
    else showBack();
  }

  answerHooks.settled = (handle, refused) => {
    if (refused !== null) notStored(handle);
    fill();
    if (!shown && none) leave();
  };

  // A case that cannot be told is given away for good: it is sent when the next thing is done, or after a while, and
  // can be taken back until then.
  function giveAway(reason) {
    const one = now();
    if (!one || labelOf(one)) return;
    settle();
    const body = new URLSearchParams({ reason, form_key: `${crypto.randomUUID?.() ?? one.read}`.replaceAll("-", "") });
    regretted = { one, body, timer: setTimeout(settle, REGRET_MS) };
    offerUndo("given away", touched ? t("Cannot tell.") : t("Cannot tell. Press Backspace to undo."));
    takeOut(one);
  }

  // Say what was done, with a button that undoes it: an answer is sent at once, so that none is lost, and is corrected.
  function offerUndo(about, text) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: t("Undo") });
    button.addEventListener("click", () => {
      back();
      if (shown && labelOf(shown)) say(t("Choose again. Your first answer counts until then."), false, "answered");
    });
    say(text, false, about);
    find("[data-status]").append(" ", button);
    clearTimeout(undoing);
    undoing = setTimeout(() => endNotice(about), REGRET_MS);
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
    if (reply?.status === 204) endNotice("given away");
    else if (refused) say(refused, true);
    else {
      seen.delete(one.read);
      say(t("Cell {number} could not be skipped. It is assigned to you again.", { number: one.number }), true);
    }
    fill();
    if (!shown && none) leave();
  }

  function back(event) {
    endNotice("answered");
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
      if (!shown) say("");
      move(-1);
    } else if (waiting().length) {
      event?.preventDefault();
      say(t("Your answer is being sent. Go back when it has arrived."), true);
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const label = new FormData(form).get("label");
    if (label) answer(label);
  });
  // A touch of a class answers, unless more is to be said; a mouse chooses, and the button answers.
  page.addEventListener("pointerdown", ({ pointerType }) => (touched = pointerType === "touch"));
  form.addEventListener("click", (event) => {
    const label = event.target;
    if (!touched || !label.matches("input[name=label]") || !store.get("one-key", true)) return;
    if (performance.now() - since < TOO_SOON_MS) return event.preventDefault();
    if (find("details", form).open) return;
    answer(label.value);
    offerUndo("answered", t("Answered: {name}", { name: name(label.value) }));
  });
  find("[data-previous]", page).addEventListener("click", back);
  if (decline) {
    find("form[data-send]", decline).addEventListener("submit", async (event) => {
      event.preventDefault();
      const [one, sent] = [now(), event.target];
      leases.drop(one.read);
      const reply = await post(sent.getAttribute("action"), new URLSearchParams(new FormData(sent))).catch(() => null);
      const refused = reply && (await refusal(reply));
      if (reply?.status === 204) {
        takeOut(one);
        say(t("Skipped."));
        return;
      }
      leases.hold(one.read, undefined, 0); // its time is asked for at once: some has passed
      if (reply?.status === 401 || reply?.status === 403) say(t("Sign in again, then skip the cell."), true);
      else say(refused ?? t("No connection. Skip the cell when you are back online."), true);
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
    if (!now() || now().broken) return;
    letGo();
    if (pending && !event.shiftKey) {
      const first = radios.find((one) => one.checked);
      if (first === radio) return answer(radio.value);
      form.elements.second_choice.value = radio.value;
      told(t("{name}, second choice {other}", { name: name(first.value), other: name(radio.value) }), t("1 to 4: confidence; Enter: submit"));
      return;
    }
    radio.checked = true;
    if (event.shiftKey) {
      pending = true;
      told(name(radio.value), t("1 to 4: confidence; class: second choice"));
      return;
    }
    if (!store.get("one-key", true) || event.key === "Enter" || event.type !== "keydown") {
      if (event.key === "Enter" && store.get("one-key", true)) answer(radio.value);
      else told(name(radio.value));
      return;
    }
    held = { code: event.code, radio, since: performance.now(), timer: 0 };
    showLevel();
  };

  // While a class waits for more, the digits say how sure, before anything else listens.
  document.addEventListener(
    "keydown",
    (event) => {
      if (!pending || !/^[1-4]$/.test(event.key) || event.target.closest("dialog, textarea, input:not([type=radio])")) return;
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
  // a key that is let go somewhere else has not answered: the choice stays, and Enter sends it; beside Command, macOS
  // tells of no key that is let go
  window.addEventListener("blur", letGo);
  document.addEventListener("keydown", ({ key }) => key === "Meta" && letGo());
  // who signs out leaves nothing behind that their session has to send
  document.addEventListener("submit", async (event) => {
    if (!regretted || page.contains(event.target)) return;
    event.preventDefault();
    await settle();
    event.target.requestSubmit(event.submitter);
  });
  window.addEventListener("pagehide", settle);

  line[0].answers = keptOf(line[0].answer);
  if (line[0].answers.length) show();
  showBack();
  fill();
}
