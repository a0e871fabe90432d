// What every module of the pages uses.

import { t } from "./words.js";

export const find = (selector, root = document) => root.querySelector(selector);
export const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// Of whom this page was made: a name that says nothing outside their browser.
export const account = document.body.dataset.account ?? "";

// Browsers may forbid storage; then nothing is remembered.
export const store = {
  get(name, otherwise) {
    try {
      return JSON.parse(localStorage.getItem(`secondread.${name}`)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      if (value === null) localStorage.removeItem(`secondread.${name}`);
      else localStorage.setItem(`secondread.${name}`, JSON.stringify(value));
    } catch {
      /* not remembered */
    }
  },
};

// `about`: what the text is of, so that it ends with it.
export function say(text, alert = false, about = "") {
  const status = find("[data-status]");
  if (!status) return;
  status.textContent = text;
  status.dataset.about = about;
  status.classList.toggle("alert", alert);
}

export function endNotice(about) {
  if (find("[data-status]")?.dataset.about === about) say("");
}

export function signInLink() {
  const link = document.createElement("a");
  link.href = "/login";
  link.target = "_blank";
  link.textContent = t("Sign in");
  return link;
}

export function askToSignIn(text = t("Sign in again; your answer is saved. ")) {
  say(text, true, "outbox");
  find("[data-status]")?.append(signInLink());
}

