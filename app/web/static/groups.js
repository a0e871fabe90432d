// Cells by class, as the service lists them in parts, each named by its id, and what is known of those that were drawn.

//: Cells that are labelled at once.
export const MOST = 500;

export class Groups {
  constructor(filters, codes) {
    this.filters = filters;
    this.codes = codes;
    this.tiles = new Map();
    this.listed = new Map(codes.map((code) => [code, []]));
    this.totals = new Map();
    this.cursor = "";
  }

  total = (code) => this.totals.get(code) ?? 0;
  names = (code) => this.listed.get(code) ?? [];
  name = (code, index) => this.names(code)[index];
  loaded = (code) => this.names(code).length;

  // The next part of the list; the first one counts them all, so that nothing moves when more comes.
  load() {
    this.loading ??= this.fetchPart().finally(() => (this.loading = null));
    return this.loading;
  }

  async fetchPart() {
    const answer = await fetch(`/cells/gallery/index?${this.filters}&${new URLSearchParams(this.cursor ? { cursor: this.cursor } : {})}`);
    if (!answer.ok) return answer;
    const { counts, groups, next_cursor: next } = await answer.json();
    // a class of an earlier release is none of these
    const known = (code) => (this.codes.includes(code) ? code : "");
    for (const [code, n] of Object.entries(counts ?? {})) this.totals.set(known(code), this.total(known(code)) + n);
    for (const [called, cells] of Object.entries(groups)) {
      const code = known(called);
      this.listed.set(code, [...this.names(code), ...cells]);
    }
    this.cursor = next;
    // cells that were erased or labelled elsewhere in between
    if (next === null) for (const code of this.codes) this.totals.set(code, this.loaded(code));
    return answer;
  }

  learn(names, tiles) {
    for (const name of names) {
      if (tiles[name]) this.tiles.set(name, tiles[name]);
      else this.remove(name);
    }
  }

  place(name) {
    for (const [code, names] of this.listed) {
      const index = names.indexOf(name);
      if (index >= 0) return { name, code, index, settled: this.tiles.get(name)?.settled ?? null };
    }
    return null;
  }

  remove(name) {
    const { code, index } = this.place(name);
    this.listed.get(code).splice(index, 1);
    this.totals.set(code, this.total(code) - 1);
  }

  insert(name, code, index) {
    this.listed.get(code).splice(index, 0, name);
    this.totals.set(code, this.total(code) + 1);
  }

  // Put cells under a class that was given to them, those that come from another one first; tells where they were.
  put(names, code) {
    const before = names.map((name) => this.place(name)).filter(Boolean);
    for (const { name, code: from } of before) {
      if (from !== code) {
        this.remove(name);
        this.insert(name, code, 0);
      }
      this.settle(name, code);
    }
    return before.toSorted((one, other) => one.index - other.index);
  }

  restore(before) {
    for (const { name, code, index, settled } of before) {
      if (this.place(name)?.code !== code) {
        this.remove(name);
        this.insert(name, code, index);
      }
      this.settle(name, settled);
    }
  }

  settle(name, settled) {
    const tile = this.tiles.get(name);
    if (tile) this.tiles.set(name, { ...tile, settled });
  }
}
