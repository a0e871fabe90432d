// The viewer of the API is dark where the system is.

const dark = matchMedia("(prefers-color-scheme: dark)");
const DARK = {
  "bg-color": "#16181d",
  "header-bg-color": "#16181d",
  "nav-bg-color": "#1f232b",
  "nav-text-color": "#e6e6e6",
  "primary-color": "#b9a7da",
  "secondary-color": "#8ab4f8",
  "text-color": "#e6e6e6",
};

function follow() {
  const viewer = document.querySelector("openapi-explorer");
  for (const [name, value] of Object.entries(DARK)) {
    if (dark.matches) {
      viewer.setAttribute(name, value);
    } else {
      viewer.removeAttribute(name);
    }
  }
}

dark.addEventListener("change", follow);
follow();

// not by the viewer's own request, which gives up after five seconds
const answer = await fetch("/openapi.json");
await customElements.whenDefined("openapi-explorer");
// it shows no external values of examples: their addresses contain them
const shown = (_name, value) => (value?.externalValue ? { value: value.externalValue } : value);
await document.querySelector("openapi-explorer").loadSpec(JSON.parse(await answer.text(), shown));
