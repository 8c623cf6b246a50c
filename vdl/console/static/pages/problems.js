// "What is wrong": each problem with its meaning and its next step, from the runbook.

import { get, file } from "../api.js";
import { h } from "../dom.js";
import { visible } from "../format.js";
import { live } from "../live.js";
import { to } from "../route.js";
import { badge, head, link } from "../ui.js";

const SECONDS = 5;

export function showProblems(context) {
  const kind = context.params.get("kind");
  return live(context, {
    name: `problems ${kind ?? ""}`,
    every: SECONDS,
    load: async (signal) => {
      const [{ explanations }, runbook] = await Promise.all([get("explain", { kind }, signal), file("runbook.json")]);
      return { explanations, runbook };
    },
    view: ({ explanations, runbook }) => [
      head("What is wrong", {
        above: kind ? [["All problems", to(["problems"])]] : [],
        note: "The words are those of vdl status and of the runbook. Some problems are only consequences of others.",
      }),
      explanations.length
        ? explanations.map((one) => explanation(one, runbook[one.kind]))
        : h("div", { class: "box ok" }, h("p", {}, badge("ok", "all is well")), h("p", {}, "The servers report no problem.")),
    ],
  });
}

function explanation(one, page) {
  return h(
    "article",
    { class: "problem", key: one.kind },
    h("h2", {}, link(to(["problems"], { kind: one.kind }), h("code", {}, one.kind)), " ", mark(one)),
    h("p", {}, sentence(one.meaning)),
    one.texts.length ? h("ul", { class: "lines" }, one.texts.map((text) => h("li", {}, visible(text)))) : null,
    page
      ? [
          h("h3", {}, "It means"),
          h("p", {}, prose(page.means)),
          h("h3", {}, "Next step"),
          h("p", { class: "step" }, prose(sentence(page.do))),
        ]
      : null,
    one.steps.length ? h("ol", {}, one.steps.map((step) => h("li", {}, visible(step)))) : null,
    h("p", { class: "note" }, "Runbook: ", h("code", {}, one.runbook)),
  );
}

function mark(one) {
  if (!one.is_present) return badge("off", "not now");
  return one.is_wrong ? badge("bad", "wrong") : badge("info", "as requested");
}

function sentence(words) {
  const text = visible(words);
  return text ? `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}` : "";
}

// Return a paragraph of the runbook: `code` and [[kind]] become elements.
function prose(text) {
  return text.split(/(`[^`]*`|\[\[\w+\]\])/).map((part, at) => {
    if (at % 2 === 0) return part;
    if (part[0] === "`") return h("code", {}, part.slice(1, -1));
    const kind = part.slice(2, -2);
    return link(to(["problems"], { kind }), kind);
  });
}
