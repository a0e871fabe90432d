// The place on the image that a comment is about: a click on the image while the comment is written, or two numbers.

import { find } from "./page.js";

// How far a pointer may move between press and release for a click, in pixels: more is a pan.
const STILL = 4;

export function placeMark(details, viewer) {
  const form = find("form", details);
  const stage = find("[data-stage]");
  const mark = find("[data-new-mark]", stage);
  const unplace = find("[data-unplace]", form);
  const fields = [form.elements.x, form.elements.y];
  let pressed = null; // where the pointer went down while the comment was being written

  const draw = () => {
    const place = fields.map((field) => (field.value === "" ? NaN : field.valueAsNumber / 100));
    const placed = place.every((share) => share >= 0 && share <= 1);
    mark.classList.toggle("placed", placed);
    unplace.hidden = !placed;
    if (placed) [mark.dataset.x, mark.dataset.y] = place;
    viewer.draw();
  };
  const put = (place) => {
    for (const [index, field] of fields.entries()) field.value = place ? (100 * place[index]).toFixed(1) : "";
    draw();
  };
  // Shares of the image's width and height at a point of the window.
  const placeAt = ({ clientX, clientY }) => {
    const image = find("img", stage);
    const box = image.getBoundingClientRect();
    const fit = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight);
    return [
      0.5 + (clientX - box.left - box.width / 2) / (fit * image.naturalWidth),
      0.5 + (clientY - box.top - box.height / 2) / (fit * image.naturalHeight),
    ];
  };

  stage.addEventListener("pointerdown", (event) => {
    pressed = form.contains(document.activeElement) ? event : null;
  });
  // the press would take the focus away from the text
  stage.addEventListener("mousedown", (event) => {
    if (form.contains(document.activeElement)) event.preventDefault();
  });
  stage.addEventListener("click", (event) => {
    if (!pressed || Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) > STILL) return;
    const place = placeAt(event);
    if (viewer.showsCell() && place.every((share) => share >= 0 && share <= 1)) put(place);
  });
  for (const field of fields) field.addEventListener("input", draw);
  unplace.addEventListener("click", () => {
    put(null);
    form.elements.text.focus();
  });
  details.addEventListener("toggle", () => details.open && form.elements.text.focus());
  draw();
}
