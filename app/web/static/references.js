// Reference cells of one class, beside the image: asked for by class, with nothing of the case that is open. Without it
// the link leads to a page that says the same.

import { hooks } from "./keyboard.js";
import { all, find } from "./page.js";
import { t } from "./words.js";

// A white blood cell fits into a tile that is so wide.
const TILE_MICRONS = 14;

// Draw reference cells with as many pixels of the screen a µm as the cell beside them, cropped around their middle; as
// they are where the size of a pixel is not known of both.
function drawToScale(root) {
  const perMicron = Number(find(".viewer")?.dataset.perMicron);
  for (const image of all("img[data-mpp]", root)) {
    const perPixel = Number(image.dataset.mpp) * perMicron;
    if (!(perPixel > 0)) {
      image.parentElement.append(Object.assign(document.createElement("span"), { className: "unknown-scale", textContent: t("scale unknown") }));
      continue;
    }
    image.closest("ul").style.setProperty("--tile", `${Math.ceil(TILE_MICRONS * perMicron)}px`);
    const crop = Object.assign(document.createElement("div"), { className: "crop" });
    image.replaceWith(crop);
    crop.append(image);
    image.loading = "eager";
    image.decode().then(() => (image.style.width = `${image.naturalWidth * perPixel}px`), () => {});
  }
  if (find(".crop", root)) find("ul", root).after(Object.assign(document.createElement("p"), { className: "muted", textContent: t("Same scale as the cell that you read.") }));
}

export function showReferences(dialog) {
  const opener = find("[data-references-open]");
  const select = find("[data-references-class]", dialog);
  const cells = find("[data-references-cells]", dialog);
  let asked = "";

  async function load() {
    const code = (asked = select.value);
    const address = `/references?${new URLSearchParams({ class: code })}`;
    const reply = await fetch(address, { headers: { Accept: "text/html" } }).catch(() => null);
    const found = reply?.ok && !reply.redirected ? find("[data-reference-class]", new DOMParser().parseFromString(await reply.text(), "text/html")) : null;
    if (asked !== code) return; // another class was asked for meanwhile
    if (found) {
      cells.replaceChildren(document.adoptNode(found));
      drawToScale(found);
    } else cells.textContent = t("These cells could not be loaded. Are you signed in and connected?");
  }

  function open(event) {
    event.preventDefault();
    const chosen = all("input[name=label]:checked")[0]?.value;
    if (chosen) select.value = chosen;
    dialog.showModal();
    load();
  }

  opener.addEventListener("click", open);
  select.addEventListener("change", load);
  hooks.look = (element) => {
    if (element === opener) dialog.close();
    if (!element.matches("input[type=radio][name=label]")) return;
    select.value = element.value;
    load();
  };
}
