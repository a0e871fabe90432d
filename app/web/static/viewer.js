// A closer look at the image: zoom, pixels as they are, light, a scale where the size of a pixel is known, and the wider
// field around the cell in its place where there is one.

import { all, find, say, store } from "./page.js";
import { t } from "./words.js";

const LARGEST = 32;
const WHOLE = { zoom: 1, x: 0, y: 0 };
const USUAL = { brightness: 100, contrast: 100 };
// Lengths that a scale bar may have, in µm.
const LENGTHS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

const percent = (value) => `${value}${document.documentElement.lang === "de" ? " " : ""}%`;

export function lookCloser(figure) {
  const stage = find("[data-stage]", figure);
  const scale = find("[data-scale]", figure);
  const around = find("[data-around-open]", figure);
  const view = { ...WHOLE };
  let cell = find("img", stage);
  let field = null; // its image, once it was asked for
  let wanted = false; // the field is to be seen, perhaps as soon as it is there
  let left = { ...WHOLE }; // the view of that of the two which is not shown
  // light stays as it was set, from case to case and until it is reset: a screen does not change with the case
  const filters = { ...USUAL, ...store.get("light", {}) };
  let pixels = store.get("pixels", false);
  const pointers = new Map();

  // Screen pixels for one of the image, without zoom.
  const fit = (image) => Math.min(stage.clientWidth / image.naturalWidth, stage.clientHeight / image.naturalHeight);

  const measure = (image) => {
    const microns = Number(figure.dataset.mpp);
    // of the field nobody said how large its pixels are
    if (scale && image !== cell) scale.hidden = true;
    if (!scale || image !== cell || !(microns > 0) || !image.naturalWidth) return;
    const perMicron = (fit(image) * view.zoom) / microns;
    figure.dataset.perMicron = perMicron;
    const length = LENGTHS.findLast((one) => one * perMicron <= stage.clientWidth / 4) ?? LENGTHS[0];
    scale.hidden = false;
    find("[data-scale-bar]", scale).style.width = `${length * perMicron}px`;
    find("[data-scale-text]", scale).textContent = `${length} µm`;
  };

  // Marks keep their size and their place on the cell's image.
  const drawMarks = (image) => {
    const marks = find("[data-marks]", stage);
    if (!marks) return;
    const { width, height } = marks.viewBox.baseVal;
    const size = 1 / (view.zoom * Math.min(stage.clientWidth / width, stage.clientHeight / height));
    if (!Number.isFinite(size)) return; // nothing is laid out yet
    marks.style.transform = image.style.transform;
    marks.style.visibility = image === cell ? "" : "hidden";
    for (const mark of marks.children) {
      const { x, y } = mark.dataset;
      mark.setAttribute("transform", `translate(${width * x} ${height * y}) scale(${size})`);
    }
  };

  const draw = () => {
    const image = find("img", stage);
    image.style.transform = `translate(${view.x}px, ${view.y}px) scale(${view.zoom})`;
    image.style.filter = `brightness(${filters.brightness}%) contrast(${filters.contrast}%)`;
    image.style.imageRendering = pixels ? "pixelated" : "";
    figure.classList.toggle("zoomed", view.zoom > 1);
    for (const range of all("[data-filter]", figure)) {
      range.value = filters[range.dataset.filter];
      const output = find(`[data-filter-value=${range.dataset.filter}]`, figure);
      if (output) output.textContent = percent(filters[range.dataset.filter]);
    }
    figure.classList.toggle("relit", filters.brightness !== 100 || filters.contrast !== 100);
    find("[data-pixels]", figure)?.setAttribute("aria-pressed", String(pixels));
    const zoomed = find("[data-zoom-value]", figure);
    if (zoomed && image.naturalWidth) zoomed.textContent = percent(Math.round(100 * fit(image) * view.zoom));
    measure(image);
    drawMarks(image);
  };

  const zoom = (factor, x = 0, y = 0) => {
    const next = factor === 0 ? 1 : Math.min(LARGEST, Math.max(1, view.zoom * factor));
    const ratio = next / view.zoom;
    view.x = next === 1 ? 0 : x - (x - view.x) * ratio;
    view.y = next === 1 ? 0 : y - (y - view.y) * ratio;
    view.zoom = next;
    draw();
  };

  const light = (name, value) => {
    const [least, most] = name === "brightness" ? [40, 220] : [40, 300];
    filters[name] = Math.min(most, Math.max(least, value));
    store.set("light", filters);
    draw();
  };

  const fromCentre = (event) => {
    const box = stage.getBoundingClientRect();
    return [event.clientX - box.left - box.width / 2, event.clientY - box.top - box.height / 2];
  };
  stage.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15, ...fromCentre(event));
  });
  stage.addEventListener("dblclick", (event) => zoom(view.zoom > 1 ? 0 : 3, ...fromCentre(event)));
  stage.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event);
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => {
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
    stage.addEventListener(end, (event) => pointers.delete(event.pointerId));
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
  for (const button of all("[data-light]", figure)) {
    button.addEventListener("click", () => light(button.dataset.light, filters[button.dataset.light] + Number(button.dataset.steps)));
  }
  find("[data-unlight]", figure)?.addEventListener("click", () => {
    Object.assign(filters, USUAL);
    store.set("light", null);
    draw();
  });
  find("[data-pixels]", figure)?.addEventListener("click", () => {
    pixels = !pixels;
    store.set("pixels", pixels);
    draw();
  });
  for (const range of all("[data-filter]", figure)) {
    range.addEventListener("input", () => light(range.dataset.filter, Number(range.value)));
  }
  // The cell and the field around it: one in the other's place, each looked at as it was left.
  const turnTo = (image) => {
    const was = { ...view };
    Object.assign(view, left);
    left = was;
    find("img", stage).replaceWith(image);
    draw();
  };
  const press = () => {
    if (!around) return;
    around.disabled = !figure.dataset.around;
    around.setAttribute("aria-pressed", String(wanted));
  };
  // Another case is shown, or none: its own image first, whatever was looked at before.
  const begin = (address) => {
    figure.dataset.around = address ?? "";
    [field, wanted, left] = [null, false, { ...WHOLE }];
    Object.assign(view, WHOLE);
    press();
  };
  around?.addEventListener("click", async () => {
    wanted = !wanted;
    press();
    if (!wanted) {
      if (find("img", stage) !== cell) turnTo(cell);
      return;
    }
    field ??= Object.assign(new Image(), { src: figure.dataset.around, alt: t("Neighbouring field of this cell"), draggable: false });
    const asked = field;
    const came = await asked.decode().then(() => true, () => false);
    if (asked !== field || !wanted || find("img", stage) === asked) return;
    if (came) return turnTo(asked);
    [field, wanted] = [null, false];
    press();
    say(t("The neighbouring field could not be loaded."), true);
  });
  press();
  new ResizeObserver(draw).observe(stage);
  const first = find("img", stage);
  if (!first.complete) first.addEventListener("load", draw, { once: true });
  draw();

  return {
    draw,
    showsCell: () => find("img", stage) === cell,
    // Put another case's image, which is decoded, in the place of the one that is there.
    show({ image, mpp, field: address }) {
      figure.dataset.mpp = mpp ?? "";
      delete figure.dataset.perMicron;
      if (scale) scale.hidden = true;
      cell = image;
      cell.style.visibility = "";
      begin(address);
      find("img", stage).replaceWith(cell);
      draw();
    },
    // No case is there.
    hide() {
      begin("");
      find("img", stage).style.visibility = "hidden";
    },
  };
}
