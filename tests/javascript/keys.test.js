// What keys do: laws of app/web/static/keys.js, without a browser.

import assert from "node:assert/strict";
import { test } from "node:test";

import { assignKeys, HOLD_MS, levelAfter, meanings, misfit, objection } from "../../app/web/static/keys.js";

const classes = (n, keys = () => [], group = () => "") =>
  Array.from({ length: n }, (_, i) => ({ name: `class ${i}`, keys: keys(i), isClass: true, group: group(i) }));
const tool = (name, ...keys) => ({ name, keys, isClass: false, group: "" });

test("a letter and a digit mean themselves wherever they lie", () => {
  assert.deepEqual(meanings({ key: "a", code: "KeyQ" }), ["a"]); // AZERTY
  assert.deepEqual(meanings({ key: "Z", code: "KeyY" }), ["z"]); // QWERTZ
  assert.deepEqual(meanings({ key: "1", code: "Digit1" }), ["1"]);
});

test("any other character may stand for the place of its key", () => {
  assert.deepEqual(meanings({ key: "и", code: "KeyB" }), ["и", "b"]);
  assert.deepEqual(meanings({ key: "&", code: "Digit1" }), ["&", "1"]);
  assert.deepEqual(meanings({ key: "é", code: "Digit2" }), ["é", "2"]);
  assert.deepEqual(meanings({ key: "ü", code: "BracketLeft" }), ["ü", "["]);
  assert.deepEqual(meanings({ key: "Backspace", code: "Backspace" }), ["Backspace"]);
});

test("no key has two meanings, whatever shortcuts the classes ask for", () => {
  for (const n of [1, 2, 8, 9, 10, 40, 81]) {
    for (const shortcut of [() => [], (i) => ["sfx/+"[i % 5]], (i) => [String.fromCharCode(97 + (i % 26))]]) {
      const all = [...classes(n, shortcut, (i) => `g${i % 5}`), tool("decline", "s", "d"), tool("flag", "f", "k"), tool("zoom in", "+")];
      const { table, shown, codes } = assignKeys(all);
      for (const [name, key] of shown) assert.equal(table.get(key) ?? codes.get(key), name);
      assert.equal(new Set(shown.values()).size, shown.size);
      assert.equal(all.filter((one) => one.isClass && !shown.has(one.name)).length, 0, `${n} classes, each with a key`);
    }
  }
});

test("a class has its key before a tool, which takes its next one", () => {
  const { shown } = assignKeys([...classes(2, (i) => ["s", "m"][i] && [["s", "m"][i]]), tool("decline", "s", "d", "Insert")]);
  assert.equal(shown.get("class 0"), "s");
  assert.equal(shown.get("decline"), "d");
});

test("nine digits choose by place; beyond them two digits are a code, and one digit chooses nothing", () => {
  const few = assignKeys(classes(9));
  assert.equal(few.table.get("3"), "class 2");
  assert.equal(few.codes.size, 0);
  const many = assignKeys(classes(40, () => [], (i) => `group ${Math.floor(i / 8)}`));
  assert.equal(many.table.has("3"), false);
  assert.equal(many.codes.get("34"), "class 19"); // the fourth of the third group
  assert.equal(many.codes.size, 40);
  const lone = assignKeys(classes(40)); // no groups: numbered from 11, without a zero
  assert.equal(lone.codes.get("21"), "class 9");
});

test("a person's own keys come first, and one that is taken is refused with its owner", () => {
  const all = [...classes(3, (i) => ["abc"[i]]), tool("flag", "f")];
  const own = assignKeys(all, { "class 0": "y" });
  assert.equal(own.shown.get("class 0"), "y");
  assert.equal(own.table.has("a"), false);
  assert.match(objection("class 0", "f", own), /the key of “flag”/);
  assert.equal(objection("class 0", "q", own), "");
  assert.equal(objection("flag", "f", own), "");
  assert.notEqual(objection("flag", "Tab", own), "");
  assert.notEqual(objection("class 0", "5", assignKeys(classes(40))), "");
});

test("a tap says nothing of how sure one is, and holding says it step by step, up to certain", () => {
  assert.equal(levelAfter(80), null);
  const levels = [1, 2, 3, 4, 9].map((steps) => levelAfter(steps * HOLD_MS + 1)[0]);
  assert.deepEqual(levels, [0.5, 0.7, 0.9, 0.99, 0.99]);
});

test("what was typed fits a class by its name, then its beginning, a word of it, letters within, its heading", () => {
  const names = ["Atypical promyelocyte with Auer rods", "Promonocyte", "Promyelocyte", "Blast"];
  const ranked = (typed) => names.filter((name) => misfit(typed, name) < Infinity).toSorted((a, b) => misfit(typed, a) - misfit(typed, b));
  assert.deepEqual(ranked("prom"), ["Promonocyte", "Promyelocyte", "Atypical promyelocyte with Auer rods"]);
  assert.deepEqual(ranked("PROMYELOCYTE"), ["Promyelocyte", "Atypical promyelocyte with Auer rods"]);
  assert.deepEqual(ranked("uer"), ["Atypical promyelocyte with Auer rods"]);
  assert.deepEqual(ranked("x"), []);
  assert.ok(misfit("pelger", "Pelger-Huët") < misfit("huë", "Pelger-Huët"));
  assert.ok(misfit("granulo", "Blast", "Granulocytes") < Infinity);
});
