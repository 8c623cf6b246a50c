// Frame of all pages: bar, menu, state of the servers, colours.

import { get, post } from "./api.js";
import { h, render } from "./dom.js";
import { clock, visible } from "./format.js";
import { Poll } from "./poll.js";
import { go, to } from "./route.js";
import { badge, button, link } from "./ui.js";

const HEALTH_SECONDS = 5;
const PAGES = [
  ["Overview", ""],
  ["Servers", "servers"],
  ["Topics", "topics"],
  ["Consumer groups", "groups"],
  ["Security", "security"],
  ["What is wrong", "problems"],
];
const THEMES = [["auto", "System"], ["light", "Light"], ["dark", "Dark"]];

const place = (id) => document.getElementById(id);

// The state of the servers, asked for again and again for all pages.
class Health {
  overview = null;
  error = null;
  answeredAt = null;
  #poll = null;
  #listeners = new Set();

  start() {
    this.#poll ??= new Poll((signal) => this.#load(signal), HEALTH_SECONDS);
  }

  stop() {
    this.#poll?.stop();
    this.#poll = null;
    this.overview = this.error = null;
  }

  now = () => this.#poll?.now();

  // Call `listener` after each answer. Returns a function that ends it.
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async #load(signal) {
    try {
      this.overview = await get("overview", {}, signal);
      this.error = null;
      this.answeredAt = Date.now();
    } catch (error) {
      if (signal.aborted) return false;
      this.error = error;
    }
    for (const listener of this.#listeners) listener();
    return this.error === null;
  }
}

// Draws the frame. `session` is that of API.md; `null` before it is known.
export class Shell {
  session = null;
  health = new Health();

  constructor(onSession) {
    this.onSession = onSession;
    this.health.listen(() => this.draw());
  }

  draw(section = this.section) {
    this.section = section;
    this.#drawBar();
    this.#drawMenu();
    this.#drawNotice();
  }

  get isIn() {
    return this.session?.state === "in";
  }

  #drawBar() {
    const { session } = this;
    const cluster = this.health.overview?.cluster ?? session?.cluster;
    render(
      place("bar"),
      h("a", { class: "brand", href: to([]) }, "VDL"),
      session
        ? h("span", { class: "where" }, cluster ? h("span", { class: "cluster" }, `${visible(cluster)} · `) : null, `server ${session.server}`)
        : null,
      this.isIn ? this.#state() : null,
      h("span", { class: "space" }),
      themeSwitch(),
      this.isIn && session.user !== null
        ? h("span", { class: "user" }, visible(session.user), " ", button("Log out", () => this.#logout()))
        : null,
    );
  }

  #state() {
    const { overview, error } = this.health;
    if (error) return link(to(["problems"]), badge("bad", "no answer"), { class: "state" });
    if (!overview) return null;
    const wrong = overview.problems.filter((one) => one.is_wrong).length;
    const words = overview.is_ok ? "all is well" : wrong === 1 ? "1 problem" : `${wrong || "some"} problems`;
    return link(to(["problems"]), badge(overview.is_ok ? "ok" : "bad", words), { class: "state" });
  }

  #drawMenu() {
    const links = PAGES.map(([words, path]) =>
      link(to(path ? [path] : []), words, { "aria-current": path === this.section ? "page" : null }),
    );
    render(place("menu"), this.isIn ? h("div", {}, links) : null);
  }

  #drawNotice() {
    const { error, answeredAt } = this.health;
    const isSilent = this.isIn && error && ["network", "timeout"].includes(error.kind);
    render(
      place("notice"),
      isSilent
        ? h(
            "div",
            { class: "box bad" },
            h(
              "p",
              {},
              `Server ${this.session.server} does not answer${answeredAt ? ` since ${clock(answeredAt)}` : ""}. `,
              "The console of another server shows the state of the others.",
            ),
            button("Try again", this.health.now),
          )
        : null,
    );
  }

  async #logout() {
    try {
      const session = await post("logout", {});
      go(to([]), { replace: true });
      this.onSession(session);
    } catch (error) {
      say(error.message);
    }
  }
}

// Have a screen reader say something.
export function say(words) {
  place("spoken").textContent = words;
}

function storedTheme() {
  return document.documentElement.dataset.theme ?? "auto";
}

function themeSwitch() {
  return h(
    "label",
    { class: "theme" },
    h("span", { class: "unseen" }, "Colours"),
    h(
      "select",
      { value: storedTheme(), onchange: useTheme },
      THEMES.map(([one, words]) => h("option", { value: one }, words)),
    ),
  );
}

function useTheme() {
  const theme = this.value;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === "auto") localStorage.removeItem("vdl.theme");
    else localStorage.setItem("vdl.theme", theme);
  } catch {
    // Storage is switched off: the choice ends with the page.
  }
}
