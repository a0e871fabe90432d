// What the scripts say, in the language of the page: the page carries it as JSON where that is not English.

const words = JSON.parse(globalThis.document?.querySelector("#words")?.textContent ?? "{}");

/** A sentence with {names} for its values. */
export function t(text, values = {}) {
  return (words[text] ?? text).replaceAll(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}
