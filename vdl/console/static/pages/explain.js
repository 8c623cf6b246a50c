// "Why": the answer of vdl explain about a partition, group, server or the set.

import { get } from "../api.js";
import { h } from "../dom.js";
import { clock, count, utc, visible } from "../format.js";
import { live } from "../live.js";
import { to } from "../route.js";
import { badge, head, link } from "../ui.js";

const SECONDS = 10;
const STEP = /(vdl explain (?:cluster|slow|server \d+|partition [\w.-]+ \d+))/;

const ofTopic = (topic) => [visible(topic), to(["topics", topic])];
const ofGroup = (group) => [visible(group), to(["groups", group])];

// Parts of the address behind #/explain → params of the question, and words.
const ABOUT = {
  cluster: () => ({ words: "What is wrong with the set?" }),
  slow: () => ({ words: "Why are requests slow?" }),
  server: (server) => ({ server, words: "What is wrong with it?", above: [`Server ${server}`, to(["servers", server])] }),
  partition: (topic, partition) => ({ topic, partition, words: `What is wrong with partition ${partition}?`, above: ofTopic(topic) }),
  leader: (topic, partition) => ({ topic, partition, words: `Why does it lead partition ${partition}?`, above: ofTopic(topic) }),
  group: (group) => ({ group, words: "Why does it rebalance?", above: ofGroup(group) }),
  lag: (group) => ({ group, words: "Why is it behind?", above: ofGroup(group) }),
};

export const why = (...path) => to(["explain", ...path.map(String)]);

export function showExplanation(context) {
  const [, about = "cluster", ...rest] = context.path;
  const { words, above, ...params } = (ABOUT[about] ?? ABOUT.cluster)(...rest);
  return live(context, {
    name: `explain ${context.path.join("/")}`,
    every: SECONDS,
    load: async (signal) => (await get("explanation", { about, ...params }, signal)).explanation,
    view: (answer) => [
      head(words, {
        above: [above ?? ["What is wrong", to(["problems"])]],
        note: "The words are those of vdl explain.",
      }),
      [answer, ...answer.also].map((one) =>
        h("article", { class: "problem" }, h("h2", {}, visible(one.summary), " ", mark(one)), finding(one))),
      gaps(answer),
    ],
  });
}

function mark(one) {
  if (one.kind === "nothing_wrong") return badge("ok", "all is well");
  return one.wrong ? badge("bad", "wrong") : badge("info", "for your information");
}

// Return a finding without its summary.
export function finding(one) {
  return [
    h("h3", {}, "Cause"),
    h("p", {}, visible(one.cause)),
    one.evidence.length ? [h("h3", {}, "Seen"), h("ul", { class: "lines" }, one.evidence.map(evidence))] : null,
    h("h3", {}, "Next step"),
    h("p", { class: "step" }, steps(visible(one.next))),
    h("p", { class: "note" }, "Runbook: ", h("code", {}, visible(one.page))),
  ];
}

function evidence({ text, server, first_ms: first, last_ms: last, count: times }) {
  const at = (ms) => h("time", { title: utc(ms) }, clock(ms));
  return h("li", {}, at(first), times > 1 ? [" to ", at(last), `, ${count(times)} times`] : null, ` server ${server}: ${visible(text)}`);
}

// Commands of vdl explain lead to the page that has the same answer.
function steps(text) {
  return text.split(STEP).map((part, at) => {
    if (at % 2 === 0) return part;
    const [, , ...path] = part.split(" ");
    return link(why(...path), h("code", {}, part));
  });
}

export function gaps({ unknown }) {
  return unknown.length
    ? [h("h2", {}, "Not known"), h("ul", { class: "lines note" }, unknown.map((text) => h("li", {}, visible(text))))]
    : null;
}
