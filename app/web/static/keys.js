// Which key does what. Nothing here touches a page, so that it is tested without one.

import { t } from "./words.js";

// Physical keys by what a US keyboard prints on them, for keyboards that print something else there.
const PRINTED = {
  BracketLeft: "[",
  BracketRight: "]",
  Semicolon: ";",
  Quote: "'",
  Slash: "/",
  Minus: "-",
  Equal: "=",
};

// What a pressed key may mean, the likeliest first. A Latin letter or a digit means itself wherever it lies; any other
// character may also stand for the place of its key: и for b, & for 1.
export function meanings({ key, code = "" }) {
  const typed = key.length === 1 ? key.toLowerCase() : key;
  if (/^[a-z0-9]$/.test(typed) || key.length > 1) return [typed];
  if (/^Key[A-Z]$/.test(code)) return [typed, code[3].toLowerCase()];
  if (/^(Digit|Numpad)[0-9]$/.test(code)) return [typed, code.at(-1)];
  return PRINTED[code] ? [typed, PRINTED[code]] : [typed];
}

// Two digits for each class: its group and its place in the group, or where those are more than nine, its number.
function codesOf(classes) {
  const groups = [...new Set(classes.map((one) => one.group))];
  const members = (group) => classes.filter((one) => one.group === group);
  if (groups.length > 1 && groups.length < 10 && groups.every((group) => members(group).length < 10)) {
    return classes.map((one) => `${groups.indexOf(one.group) + 1}${members(one.group).indexOf(one) + 1}`);
  }
  return classes.map((_, number) => `${Math.floor(number / 9) + 1}${(number % 9) + 1}`).slice(0, 81);
}

// A key for each action, none for two.
//
// actions: { name, keys: those that it may have, best first, isClass, group }. A class comes before a tool. chosen: keys
// of a person's own, by name. Gives `table` from key to name, `shown` from name to the key that is printed beside it,
// and `codes` from two digits to the name of a class; codes are there where nine digits are too few, and the digits
// alone choose nothing then.
export function assignKeys(actions, chosen = {}) {
  const [table, shown, codes] = [new Map(), new Map(), new Map()];
  const classes = actions.filter((one) => one.isClass);
  const tools = actions.filter((one) => !one.isClass);
  const take = (name, key) => {
    if (!key || table.has(key) || shown.has(name)) return;
    table.set(key, name);
    shown.set(name, key);
  };
  for (const { name } of [...classes, ...tools]) take(name, chosen[name]);
  for (const { name, keys } of [...classes, ...tools]) for (const key of keys) take(name, key);
  if (classes.some(({ name }, place) => !shown.has(name) && place >= 9)) {
    codesOf(classes).forEach((code, place) => {
      codes.set(code, classes[place].name);
      if (!shown.has(classes[place].name)) shown.set(classes[place].name, code);
    });
    return { table, shown, codes };
  }
  classes.slice(0, 9).forEach(({ name }, place) => {
    const digit = String(place + 1);
    if (table.has(digit)) return;
    table.set(digit, name);
    if (!shown.has(name)) shown.set(name, digit);
  });
  return { table, shown, codes };
}

// Why an action may not have a key; empty where it may. `called`: what the action that has it is called on the page.
export function objection(name, key, { table, codes }, called = table.get(key)) {
  const owner = table.get(key);
  if (owner && owner !== name) return t("{key} is already the key of “{name}”. Change that one first.", { key, name: called });
  if (codes.size && /^[0-9]$/.test(key)) return t("Digits are reserved for class codes.");
  if (["Tab", "Escape", "Shift", "Control", "Alt", "Meta", "AltGraph", "Dead"].includes(key)) return t("This key is reserved.");
  return "";
}

// How well a class fits what was typed, best first: its name, the beginning of its name or of one of its words, letters
// within it, letters of its heading. Infinity if it does not fit.
export function misfit(typed, name, heading = "") {
  const [wanted, full, above] = [typed.trim(), name, heading].map((text) => text.toLowerCase());
  const words = full.split(/[^\p{L}\p{N}]+/u);
  const fits = [full === wanted, full.startsWith(wanted), words.some((word) => word.startsWith(wanted)), full.includes(wanted), above.includes(wanted)];
  const best = fits.indexOf(true);
  return best < 0 ? Infinity : best;
}

// How sure somebody is who has held a key for so many milliseconds: null for a tap.
export const LEVELS = [
  [0.5, t("a guess")],
  [0.7, t("fairly confident")],
  [0.9, t("confident")],
  [0.99, t("certain")],
];
export const HOLD_MS = 450;

export function levelAfter(milliseconds) {
  const steps = Math.floor(milliseconds / HOLD_MS);
  return steps < 1 ? null : LEVELS[Math.min(steps, LEVELS.length) - 1];
}
