// "What is wrong": each problem with its meaning, from the runbook, and its cause and next step, from
// vdl explain.

import { get, file } from "../api.js";
import { h } from "../dom.js";
import { visible } from "../format.js";
import { live } from "../live.js";
import { to } from "../route.js";
import { badge, head, link } from "../ui.js";
import { finding, gaps, why } from "./explain.js";

const SECONDS = 10;
const PARTITION = /(?:^| of )(\S+)-(\d+) /;
const OWN = ["catalog", "coordinator"]; // no topics

export function showProblems(context) {
  const kind = context.params.get("kind");
  return live(context, {
    name: `problems ${kind ?? ""}`,
    every: SECONDS,
    load: async (signal) => {
      const [{ explanations }, runbook, answer] = await Promise.all([
        get("explain", { kind }, signal), file("runbook.json"), answerAboutCluster(signal),
      ]);
      return { explanations, runbook, answer };
    },
    view: ({ explanations, runbook, answer }) => [
      head("What is wrong", {
        above: kind ? [["All problems", to(["problems"])]] : [],
        note: "The words are those of vdl status and of the runbook. Some problems are only consequences of others.",
      }),
      others(answer, explanations, kind),
      explanations.map((one) => explanation(one, runbook[one.kind], findings(answer, one))),
      explanations.length || !answer.ok
        ? null
        : h("div", { class: "box ok" }, h("p", {}, badge("ok", "all is well")), h("p", {}, "The servers report no problem.")),
      gaps(answer),
    ],
  });
}

// Return the answer of vdl explain cluster; an empty one for users who may not ask for it.
async function answerAboutCluster(signal) {
  try {
    return (await get("explanation", {}, signal)).explanation;
  } catch (error) {
    if (error.kind !== "forbidden") throw error;
    return { ok: true, kind: "nothing_wrong", also: [], unknown: [] };
  }
}

const found = (answer) => [answer, ...answer.also].filter((one) => one.kind !== "nothing_wrong");

const isOf = (one, problem) => one.kind === problem.kind && (problem.server === null || one.server === problem.server);

const findings = (answer, problem) => found(answer).filter((one) => isOf(one, problem));

// Return what is wrong besides the problems that servers report of themselves.
function others(answer, problems, kind) {
  return found(answer)
    .filter((one) => (!kind || one.kind === kind) && !problems.some((problem) => isOf(one, problem)))
    .map((one) =>
      h(
        "article",
        { class: "problem" },
        h("h2", {}, visible(one.summary), " ", one.wrong ? badge("bad", "wrong") : badge("info", "lately")),
        finding(one),
      ),
    );
}

// Return a problem in words, with a link to the reason if it names a partition.
function line(text) {
  const [, topic, partition] = PARTITION.exec(`${text} `) ?? [];
  const isTopic = topic !== undefined && !OWN.includes(topic);
  return h("li", {}, visible(text), isTopic ? [" ", link(why("partition", topic, partition), "Why?")] : null);
}

function explanation(one, page, causes) {
  return h(
    "article",
    { class: "problem", key: one.kind },
    h("h2", {}, link(to(["problems"], { kind: one.kind }), h("code", {}, one.kind)), " ", mark(one)),
    h("p", {}, sentence(one.meaning)),
    one.texts.length ? h("ul", { class: "lines" }, one.texts.map(line)) : null,
    causes.map((cause) => h("div", {}, causes.length > 1 ? h("h3", {}, visible(cause.summary)) : null, finding(cause))),
    page
      ? [
          h("h3", {}, "It means"),
          h("p", {}, prose(page.means)),
          h("h3", {}, causes.length ? "The runbook says" : "Next step"),
          h("p", { class: "step" }, prose(sentence(page.do))),
        ]
      : null,
    causes.length ? null : h("p", { class: "note" }, "Runbook: ", h("code", {}, one.runbook)),
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
