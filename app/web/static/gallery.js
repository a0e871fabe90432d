// Cells by class: a virtual list of tiles, of which only those in view are in the page.

import { hooks } from "./keyboard.js";
import { all, find, say, signInLink, store } from "./page.js";
import { Groups, MOST } from "./groups.js";
import { t } from "./words.js";

const GAP = 6;
const MARGIN = 200;
const PAUSE_MS = 60;
const ASKED = 200;

const form = find("[data-gallery]");
const coarse = matchMedia("(pointer: coarse)").matches;
const sizes = all("[data-size]");

const post = (path, fields) =>
  fetch(`/cells/gallery/${path}`, { method: "POST", headers: { Accept: "application/json" }, body: new URLSearchParams(fields) });

class Gallery {
  constructor() {
    this.lists = new Map(
      all("[data-group]", form).map((section) => [
        section.dataset.group,
        { section, list: find("[role=listbox]", section), count: find("[data-count]", section), drawn: new Map() },
      ]),
    );
    this.groups = new Groups(form.dataset.filters, [...this.lists.keys()]);
    this.size = Number(store.get("tile-size", innerWidth > 1800 ? 160 : 96));
    this.at = { code: "", index: 0, anchor: 0 };
    this.selected = new Set();
    this.n_posts = 0;
    this.last = null;
    // what was asked for, one after the other: a key that comes early is of what is active by then
    this.queue = Promise.resolve();
  }

  async begin() {
    await this.more();
    this.at.code = this.groups.codes.find((code) => this.groups.total(code)) ?? "";
    this.listen();
    this.resize(this.size);
  }

  listen() {
    for (const [code, { list }] of this.lists) {
      list.addEventListener("keydown", (event) => this.press(event, code));
      list.addEventListener("click", (event) => this.click(event, code));
      list.addEventListener("focus", () => this.at.code !== code && this.move(code, 0));
    }
    let asked = false;
    const later = () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => {
        asked = false;
        this.draw();
      });
    };
    window.addEventListener("scroll", later, { passive: true });
    new ResizeObserver(later).observe(form);
    for (const button of sizes) {
      button.addEventListener("click", () => {
        store.set("tile-size", Number(button.dataset.size));
        this.resize(Number(button.dataset.size));
      });
    }
    if (!("manages" in form.dataset)) return;
    hooks.choose = (radio) => this.next(() => this.give(radio.value));
    form.addEventListener("change", ({ target }) => {
      if (target.name !== "label") return;
      target.checked = false;
      this.next(() => this.give(target.value));
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    find("[data-confirm]").addEventListener("click", () => this.next(() => this.confirm()));
    find("[data-undo]").addEventListener("click", () => this.next(() => this.undo()));
    document.addEventListener("keydown", (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.key !== "z" || event.target.closest("input[type=search], textarea")) return;
      event.preventDefault();
      this.next(() => this.undo());
    });
  }

  next(action) {
    this.queue = this.queue.then(action, action);
  }

  resize(size) {
    this.size = size;
    for (const button of sizes) button.setAttribute("aria-pressed", String(Number(button.dataset.size) === size));
    this.draw();
  }

  get width() {
    return find(".groups-of-cells", form).clientWidth + GAP;
  }

  // Tiles in a row, the same in every group.
  get columns() {
    return Math.max(1, Math.floor(this.width / (this.size + GAP)));
  }

  // From a tile to the next one: tiles are a little larger than asked for, so that they fill the row.
  get step() {
    return Math.floor(this.width / this.columns);
  }

  draw() {
    const { columns, step } = this;
    const wanted = [];
    let missing = false;
    for (const [code, { section, list, count }] of this.lists) {
      const total = this.groups.total(code);
      section.hidden = !total;
      count.textContent = total.toLocaleString(document.documentElement.lang);
      list.style.height = `${Math.ceil(total / columns) * step}px`;
    }
    for (const [code, one] of this.lists) {
      const total = this.groups.total(code);
      const { top } = one.list.getBoundingClientRect();
      const first = Math.max(0, Math.floor((-MARGIN - top) / step)) * columns;
      const end = total ? Math.min(total, Math.ceil((innerHeight + MARGIN - top) / step) * columns) : 0;
      const kept = new Map();
      for (let index = first; index < end; index += 1) {
        const name = this.groups.name(code, index);
        if (name === undefined) missing = true;
        else kept.set(name, this.tile(one, code, name, index, { columns, step }));
        if (name !== undefined && !this.groups.tiles.has(name)) wanted.push(name);
      }
      for (const [name, element] of one.drawn) if (!kept.has(name)) element.remove();
      one.drawn = kept;
      one.list.setAttribute("aria-busy", String(kept.size === 0));
    }
    this.mark();
    if (missing) this.more().then((came) => came && this.draw());
    else if (wanted.length) this.ask();
  }

  // Load the next part of the index; tells whether it came.
  async more() {
    const answer = await this.groups.load().catch(() => null);
    if (!answer?.ok) await this.complain(answer);
    return Boolean(answer?.ok);
  }

  // Ask for what is in view after a short pause: what has left it by then counts as never seen.
  ask() {
    if (this.asking) return;
    this.asking = true;
    setTimeout(async () => {
      const names = [...this.lists.values()].flatMap(({ drawn }) => [...drawn.keys()]).filter((name) => !this.groups.tiles.has(name));
      const answer = names.length ? await post("tiles", names.slice(0, ASKED).map((name) => ["cell", name])).catch(() => null) : null;
      if (answer?.ok) this.groups.learn(names.slice(0, ASKED), (await answer.json()).tiles);
      else if (names.length) this.complain(answer);
      this.asking = false;
      if (answer?.ok) this.draw();
    }, PAUSE_MS);
  }

  async complain(answer) {
    const problem = await answer?.json().catch(() => null);
    const signedOut = answer?.status === 401;
    say(signedOut ? t("Sign in again, then go on. ") : (problem?.detail ?? t("No connection. Try again when you are back online.")), true);
    if (signedOut) find("[data-status]")?.append(signInLink());
  }

  tile({ list, drawn }, code, name, index, { columns, step }) {
    let element = drawn.get(name);
    if (!element) {
      element = document.createElement("div");
      element.id = `tile-${name}`;
      element.dataset.name = name;
      element.className = "cell-tile";
      element.setAttribute("role", "option");
      list.append(element);
    }
    element.style.width = element.style.height = `${step - GAP}px`;
    element.style.transform = `translate(${(index % columns) * step}px, ${Math.floor(index / columns) * step}px)`;
    element.setAttribute("aria-posinset", index + 1);
    element.setAttribute("aria-setsize", this.groups.total(code));
    const tile = this.groups.tiles.get(name);
    element.setAttribute("aria-label", tile ? `${tile.external_id}${tile.settled ? " ✓" : ""}` : t("loading"));
    element.classList.toggle("settled", Boolean(tile?.settled));
    if (!tile) return element;
    const image = element.firstChild ?? element.appendChild(new Image());
    const scale = this.scale(tile, step - GAP);
    image.width = Math.round(tile.width * scale);
    image.height = Math.round(tile.height * scale);
    image.alt = "";
    image.draggable = false;
    if (!image.src) image.src = `/cells/${name}/thumbnail`;
    return element;
  }

  // One scale for all: µm where they are known, else pixels; an image without its µm among others fills its tile.
  scale({ width, height, microns_per_pixel: microns }, side) {
    if ("microns" in form.dataset && !microns) return side / Math.max(width, height);
    return (side / Number(form.dataset.extent)) * ("microns" in form.dataset ? microns : 1);
  }

  mark() {
    for (const [code, { list, drawn }] of this.lists) {
      const here = code === this.at.code ? this.groups.name(code, this.at.index) : undefined;
      if (drawn.has(here)) list.setAttribute("aria-activedescendant", `tile-${here}`);
      else list.removeAttribute("aria-activedescendant");
      for (const [name, element] of drawn) {
        element.setAttribute("aria-selected", String(this.selected.has(name)));
        element.classList.toggle("active", name === here);
      }
    }
    this.tell();
  }

  tell() {
    const confirm = find("[data-confirm] span");
    const n = this.selected.size;
    if (confirm) confirm.textContent = n ? t("Confirm {n} selected", { n }) : t("Confirm the row");
    const name = this.groups.name(this.at.code, this.at.index);
    const tile = this.groups.tiles.get(name);
    if (!tile || this.told === tile) return;
    this.told = tile;
    const link = document.createElement("a");
    link.href = `/cases/${name}`;
    link.textContent = tile.external_id;
    const about = document.createElement("span");
    about.className = "muted";
    about.textContent = t("predicted: {name}", { name: this.called(tile.predicted) });
    find("[data-tile-told]").replaceChildren(link, about);
  }

  called = (code) => find("h2", this.lists.get(code)?.section)?.firstChild.textContent.trim() ?? code;

  move(code, index, { extend = false, focus = false } = {}) {
    const last = this.groups.loaded(code) - 1;
    const to = Math.max(0, Math.min(index, last));
    if (extend && code === this.at.code) {
      const [from, until] = [Math.min(this.at.anchor, to), Math.max(this.at.anchor, to)];
      this.selected = new Set(this.groups.names(code).slice(from, until + 1));
      this.at.index = to;
    } else {
      this.selected.clear();
      this.at = { code, index: to, anchor: to };
    }
    const { list } = this.lists.get(code);
    if (focus) list.focus({ preventScroll: true });
    const top = list.getBoundingClientRect().top + Math.floor(to / this.columns) * this.step;
    const palette = find(".palette", form).getBoundingClientRect();
    const floor = palette.left < list.getBoundingClientRect().right ? Math.min(innerHeight, palette.top) : innerHeight;
    if (top < 48) window.scrollBy(0, top - 48);
    else if (top + this.step > floor) window.scrollBy(0, top + this.step - floor);
    this.draw();
  }

  // The next or previous group that has cells.
  beside(code, way) {
    const filled = this.groups.codes.filter((one) => this.groups.total(one));
    return filled[filled.indexOf(code) + way];
  }

  press(event, code) {
    const { columns } = this;
    const { index } = this.at;
    const rows = Math.max(1, Math.floor(innerHeight / this.step) - 1) * columns;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, PageUp: -rows, PageDown: rows, Home: -index, End: Infinity };
    const extend = event.shiftKey;
    if ((event.ctrlKey || event.metaKey) && event.key === "a") {
      this.selected = new Set(this.groups.names(code).slice(0, MOST));
      this.mark();
    } else if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    } else if (event.key === " ") {
      this.toggle(this.groups.name(code, index));
    } else if (event.key === "Escape") {
      this.selected.clear();
      this.mark();
    } else if (event.key in steps) {
      const step = steps[event.key];
      const whole = Math.abs(step) === columns && !extend;
      const leaves = whole && (index + step < 0 ? -1 : Math.floor(index / columns) === Math.floor((this.groups.total(code) - 1) / columns) && step > 0 ? 1 : 0);
      const next = leaves ? this.beside(code, leaves) : undefined;
      if (next !== undefined) this.move(next, leaves < 0 ? this.groups.loaded(next) - 1 : 0, { focus: true });
      else if (!leaves) this.move(code, index + step, { extend });
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  toggle(name) {
    if (!this.selected.delete(name)) this.selected.add(name);
    this.at.anchor = this.at.index;
    this.mark();
  }

  click(event, code) {
    const name = event.target.closest("[data-name]")?.dataset.name;
    if (!name) return;
    const index = this.groups.names(code).indexOf(name);
    if (event.shiftKey) {
      this.move(code, index, { extend: true, focus: true });
    } else if ((event.ctrlKey || event.metaKey || coarse) && code === this.at.code) {
      this.at.index = index;
      this.toggle(name);
    } else {
      this.move(code, index, { focus: true });
      if (coarse) this.toggle(name);
    }
  }

  // The cells that an answer is of: the selected ones, else the one that is active.
  chosen() {
    const here = this.groups.name(this.at.code, this.at.index);
    return this.selected.size ? [...this.selected] : here ? [here] : [];
  }

  give(code) {
    return this.label(this.chosen(), code, this.at.index + (code === this.at.code && !this.selected.size ? 1 : 0));
  }

  confirm() {
    const { code, index } = this.at;
    if (!("class" in (this.lists.get(code)?.section.dataset ?? {}))) return say(t("These cells have no class that could be confirmed."), true);
    const row = Math.floor(index / this.columns) * this.columns;
    const names = this.selected.size ? [...this.selected] : this.groups.names(code).slice(row, row + this.columns);
    return this.label(names, code, this.selected.size ? index + 1 : index + this.columns);
  }

  async label(names, code, next) {
    if (!names.length) return;
    if (names.length > MOST) return say(t("Select at most {n} cells at once.", { n: MOST }), true);
    const answer = await this.send("labels", [["label", code], ...names.map((name) => ["cell", name])]);
    if (!answer) return;
    const before = this.groups.put(names, code);
    if (answer.first) this.last = { first: answer.first, before };
    say(`${names.length} × ${this.called(code)}`);
    this.settle(next);
  }

  async undo() {
    if (!this.last) return;
    const answer = await this.send("undo", [["first", this.last.first]]);
    if (!answer) return;
    this.groups.restore(this.last.before);
    const [back] = this.last.before;
    this.last = null;
    this.at.code = back.code;
    say(t("Undone."));
    this.settle(back.index);
  }

  async send(path, fields) {
    form.classList.add("sending");
    const key = `${form.elements.form_key.value}-${(this.n_posts += 1)}`;
    const answer = await post(path, [["form_key", key], ["account", form.elements.account.value], ...fields]).catch(() => null);
    form.classList.remove("sending");
    if (answer?.ok) return answer.json();
    await this.complain(answer);
    return null;
  }

  settle(index) {
    find("[data-undo]").disabled = !this.last;
    this.told = null;
    const { list } = this.lists.get(this.at.code);
    const { top } = list.getBoundingClientRect();
    this.draw(); // sections that have become empty are gone before the focus moves
    if (list.offsetParent) window.scrollBy(0, list.getBoundingClientRect().top - top);
    const code = this.groups.total(this.at.code) ? this.at.code : (this.groups.codes.find((one) => this.groups.total(one)) ?? "");
    this.move(code, index, { focus: true });
  }
}

if (form) new Gallery().begin();
