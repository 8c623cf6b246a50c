// "What is wrong": each problem with its next steps and its page in the runbook.

import { get } from "../api.js";
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
    load: (signal) => get("explain", { kind }, signal),
    view: ({ explanations }) => [
      head("What is wrong", {
        above: kind ? [["All problems", to(["problems"])]] : [],
        note: "The words are those of vdl status and of the runbook. Lower ones are often only consequences of the first.",
      }),
      explanations.length
        ? explanations.map(explanation)
        : h("div", { class: "box ok" }, h("p", {}, badge("ok", "all is well")), h("p", {}, "The servers report no problem.")),
    ],
  });
}

function explanation(one) {
  const isWrong = one.is_wrong ?? one.is_present;
  return h(
    "article",
    { class: "problem", key: one.kind },
    h(
      "h2",
      {},
      h("code", {}, one.kind),
      " ",
      one.is_present ? badge(isWrong ? "bad" : "info", isWrong ? "wrong" : "note") : badge("ok", "not now"),
    ),
    h("p", {}, sentence(one.meaning)),
    one.texts.length ? h("ul", { class: "lines" }, one.texts.map((text) => h("li", {}, visible(text)))) : null,
    one.steps.length ? [h("h3", {}, "Do"), h("ol", {}, one.steps.map((step) => h("li", {}, visible(step))))] : null,
    one.runbook
      ? h("p", {}, link(one.runbook, "Page in the runbook", { target: "_blank", rel: "noopener noreferrer" }))
      : h("p", { class: "note" }, "The runbook, deploy/runbook.md, has a page for this word."),
  );
}

function sentence(words) {
  const text = visible(words);
  return text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "";
}
