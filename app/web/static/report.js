// A page whose report is being made looks again until it is there.
const SECONDS = 2;

async function lookAgain() {
  try {
    const answer = await fetch(location.href, { credentials: "same-origin" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok || !page.querySelector("[data-making]")) {
      location.reload();
      return;
    }
  } catch {
    // no connection: the next look may have one
  }
  setTimeout(lookAgain, SECONDS * 1000);
}

if (document.querySelector("[data-making]")) setTimeout(lookAgain, SECONDS * 1000);
