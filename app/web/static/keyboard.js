// Keys on the pages: what they press, and how people choose their own.

import { assignKeys, meanings, misfit, objection } from "./keys.js";
import { all, find, say, store } from "./page.js";
import { t } from "./words.js";

const CODE_MS = 2000;
const writing = (target) => target.closest("textarea, select, input:not([type=radio], [type=checkbox], [type=range])");

// Keys whose names are too long to be printed on a button.
const PRINTED = { Backspace: "⌫", Delete: "Del", Insert: "Ins", " ": "Space" };

// What a page may do instead of choosing a class: see reading.js; and what keys of the page behind an open dialog do: see
// references.js.
export const hooks = { choose: null, look: null };

// One action a button, choice or summary with a <kbd>.
function actions() {
  return all("[data-action]").flatMap((element) => {
    const isClass = element.matches("input[type=radio]");
    const hint = find("kbd", element.matches("input") ? element.closest("label") : element);
    if (!hint) return [];
    hint.dataset.usual ??= hint.textContent;
    const keys = (element.dataset.keys ?? hint.dataset.usual).split(" ").filter(Boolean);
    const group = element.closest("[role=group]")?.getAttribute("aria-label") ?? "";
    const name = element.dataset.action;
    return [{ name, called: element.dataset.called ?? name, element, hint, keys, isClass, group }];
  });
}

let assigned = assignKeys([]);
let present = [];

// Read the actions of the page again, and print their keys beside them.
export function refreshKeys() {
  present = actions();
  const chosen = store.get("keys", {});
  // keys of a person's own were kept by the names of classes, which may change now
  for (const { name, element } of present) chosen[name] ??= chosen[element.dataset.former];
  store.set("keys", chosen);
  assigned = assignKeys(present, chosen);
  for (const { name, hint } of present) {
    const key = assigned.shown.get(name) ?? "";
    hint.textContent = PRINTED[key] ?? key;
    hint.hidden = !hint.textContent;
  }
}

const named = (name) => present.filter((one) => one.name === name).map((one) => one.element);

function act(element, event) {
  if (element.matches("input[type=radio]")) {
    if (hooks.choose && element.name === "label") {
      hooks.choose(element, event);
      return;
    }
    element.checked = true;
    element.focus();
    element.dispatchEvent(new Event("change", { bubbles: true }));
  } else if (element.matches("summary")) {
    const details = element.parentElement;
    details.open = !details.open;
    if (details.open) find("input:not([type=hidden]), button", details)?.focus();
    else element.focus();
  } else if (element.matches("input[type=checkbox]")) {
    element.click();
    say(element.checked ? t("{what}: yes", { what: element.closest("label").querySelector("span").textContent }) : "");
  } else if (element.matches("input")) {
    element.focus();
  } else {
    element.click();
  }
}

let begun = "";
let forgetting;

// The first digit of a code belongs to the case that was shown.
export function forgetCode() {
  if (!begun) return;
  clearTimeout(forgetting);
  begun = "";
}

// The class whose two digits are complete by this one; undefined while they are not, null where digits are no codes.
function byCode(key) {
  if (!assigned.codes.size || !/^[0-9]$/.test(key)) return null;
  clearTimeout(forgetting);
  const name = begun && assigned.codes.get(begun + key);
  begun = name || begun ? "" : key;
  say(begun ? `${begun} …` : "");
  if (begun) forgetting = setTimeout(() => ((begun = ""), say("")), CODE_MS);
  return name ? named(name)[0] : undefined;
}

// In an open list of reasons the digits choose among them.
function reason(key, inside) {
  return /^[1-9]$/.test(key) && inside && !inside.closest("form") ? all("input[type=radio]", inside)[Number(key) - 1] : undefined;
}

export function listenToKeys() {
  refreshKeys();
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey || event.altKey) && !event.getModifierState("AltGraph")) return;
    if (event.isComposing) return;
    if (event.key === "Escape") {
      document.activeElement?.blur();
      return;
    }
    if (writing(event.target) || !store.get("keys-on", true)) return;
    // what has the focus answers to Enter by itself, except a choice, which would send the form without a look at it
    if (event.key === "Enter" && event.target.closest("button, a, summary")) return;
    if (event.target.matches("[type=range]") && event.key.startsWith("Arrow")) return;
    const inside = event.target.closest("details[open]");
    for (const key of meanings(event)) {
      const coded = byCode(key);
      const elements = named(assigned.table.get(key));
      const own = elements.find((one) => inside?.contains(one)) ?? elements[0];
      const element = reason(key, inside) ?? (coded === null ? own : coded);
      if (coded === undefined) event.preventDefault();
      const dialog = find("dialog[open]");
      if (element && dialog && !dialog.contains(element)) {
        event.preventDefault();
        if (!event.repeat) hooks.look?.(element);
        return;
      }
      if (element && (element.offsetParent !== null || element.matches("input[type=checkbox]"))) {
        event.preventDefault();
        // a key that is held down asks once, except for what goes step by step
        if (!event.repeat || element.dataset.steps !== undefined) act(element, event);
      }
      if (element || coded === undefined) return;
    }
  });
}

// In a group of radios the arrows would choose. Here they move the image where it is zoomed, else only the focus, and
// Space chooses.
export function keepChoices() {
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step || !event.target.matches("input[type=radio][name=label]")) return;
    event.preventDefault();
    if (find(".viewer.zoomed")) return;
    const choices = all("input[type=radio][name=label]", event.target.form).filter((one) => one.offsetParent !== null);
    choices[(choices.indexOf(event.target) + step + choices.length) % choices.length].focus();
  });
}

// Classes by a few letters: the best fit is marked, arrows move the mark, and Enter takes the marked class alone.
export function searchChoices(input) {
  const fieldset = input.closest("fieldset");
  const choices = all(".choice", fieldset);
  const shown = () => choices.filter((choice) => !choice.hidden);
  let marked = null;
  const mark = (choice) => {
    marked?.classList.remove("marked");
    marked = choice ?? null;
    marked?.classList.add("marked");
    marked?.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-description", marked ? find("span", marked).textContent : "");
  };
  const search = () => {
    const ranked = choices.map((choice) => {
      const heading = find(".group-name", choice.closest(".group") ?? choice)?.textContent;
      return { choice, rank: misfit(input.value, find("span", choice).textContent, heading) };
    });
    for (const { choice, rank } of ranked) choice.hidden = rank === Infinity;
    for (const group of all(".group", fieldset)) group.hidden = !all(".choice:not([hidden])", group).length;
    const best = ranked.reduce((one, other) => (other.rank < one.rank ? other : one));
    mark(input.value.trim() && best.rank < Infinity ? best.choice : null);
  };
  const leave = () => {
    input.value = "";
    search();
    input.blur();
  };
  input.addEventListener("input", search);
  input.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step && marked) {
      event.preventDefault();
      mark(shown()[(shown().indexOf(marked) + step + shown().length) % shown().length]);
    }
    if (event.key === "Escape") leave();
    if (event.key !== "Enter") return;
    event.preventDefault();
    const chosen = marked;
    if (!chosen) return;
    leave();
    act(find("input", chosen), event);
  });
}

export function showKeys() {
  const box = find("[data-keys-card]");
  if (!box) return;
  const list = find("[data-keys-list]", box);
  const told = find("[data-keys-told]", box);
  for (const [name, otherwise] of [["keys-on", true], ["one-key", true], ["breaks", false]]) {
    const input = find(`[data-setting=${name}]`, box);
    if (!input) continue;
    input.checked = store.get(name, otherwise);
    input.addEventListener("change", () => store.set(name, input.checked));
  }
  const draw = () => {
    const shown = present.filter((one, place) => present.findIndex((other) => other.name === one.name) === place);
    list.replaceChildren(
      ...shown.map(({ name, called }) => {
        const label = document.createElement("label");
        const input = document.createElement("input");
        label.className = "key-choice";
        input.value = assigned.shown.get(name) ?? "";
        input.size = 6;
        input.addEventListener("keydown", (event) => {
          if (event.key === "Tab" || event.key === "Escape") return;
          event.preventDefault();
          const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
          const owner = present.find((one) => one.name === assigned.table.get(key));
          told.textContent = objection(name, key, assigned, owner?.called);
          if (told.textContent) return;
          store.set("keys", { ...store.get("keys", {}), [name]: key });
          refreshKeys();
          input.value = key;
        });
        label.append(called, input);
        return label;
      }),
    );
  };
  find("[data-keys-reset]", box).addEventListener("click", () => {
    store.set("keys", null);
    told.textContent = "";
    refreshKeys();
    draw();
  });
  draw();
}
