// Topics, and one of them: partitions, settings, consumer groups.

import { get } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, difference, offset } from "../format.js";
import { live } from "../live.js";
import { to } from "../route.js";
import {
  badge, empty, figure, figures, head, link, name, ordered, pager, search, settings, table, tabs, toggle,
} from "../ui.js";
import { why } from "./explain.js";

const LIST_SECONDS = 10;
const TOPIC_SECONDS = 5;

export function showTopics(context) {
  const { params } = context;
  const order = ordered(params, "name");
  const query = {
    page: params.get("page"),
    search: params.get("search"),
    sort: order.by,
    order: order.way,
    internal: params.get("internal"),
  };
  return live(context, {
    name: "topics",
    every: LIST_SECONDS,
    load: (signal) => get("topics", query, signal),
    view: ({ page, topics }) => [
      head("Topics"),
      h(
        "div",
        { class: "tools" },
        search(params.get("search"), { label: "Part of a name" }),
        toggle("internal topics", "internal", params.get("internal") === "true"),
        pager(page, "topics"),
      ),
      topicTable(topics, order, query.search),
      page.pages > 1 ? pager(page, "topics", "below") : null,
    ],
  });
}

function topicTable(topics, order, searched) {
  return table({
    caption: "Topics",
    rows: topics,
    order,
    key: (one) => one.name,
    none: searched ? "No topic has this in its name." : "There are no topics. A client makes one, or vdl topic create.",
    columns: [
      {
        label: "Topic",
        sort: "name",
        wide: true,
        cell: (one) => [
          link(to(["topics", one.name]), name(one.name)),
          one.internal ? h("span", { class: "tag" }, "internal") : null,
        ],
      },
      { label: "Partitions", sort: "partitions", number: true, cell: (one) => count(one.partitions) },
      { label: "Replicas", sort: "replication", number: true, cell: (one) => count(one.replication) },
      {
        label: "Under-replicated",
        sort: "under_replicated",
        number: true,
        cell: (one) => (one.under_replicated ? badge("warn", count(one.under_replicated)) : "0"),
      },
      {
        label: "Without leader",
        number: true,
        cell: (one) => (one.without_leader ? badge("bad", count(one.without_leader)) : "0"),
      },
      { label: "Records", cell: (one) => link(to(["topics", one.name, "records"]), "Show") },
    ],
  });
}

// Return the heading that all pages of a topic have.
export function topicHead(topic, shown, session) {
  const path = ["topics", topic];
  return [
    head(topic, { above: [["Topics", to(["topics"])]] }),
    tabs("Parts of the topic", [
      ["Partitions", to(path), shown === "partitions"],
      ["Records", to([...path, "records"]), shown === "records"],
      ["Settings", to(path, { part: "settings" }), shown === "settings"],
      ["Consumer groups", to(path, { part: "groups" }), shown === "groups"],
      ...(session.can_change ? [["Produce", to([...path, "produce"]), shown === "produce"]] : []),
    ]),
  ];
}

export function showTopic(context) {
  const { path, params, session } = context;
  const topic = path[1];
  const part = params.get("part") ?? "partitions";
  const parts = { partitions: partitionsPart, settings: settingsPart, groups: groupsPart };
  const { load, view } = (parts[part] ?? partitionsPart)(topic, params);
  return live(context, {
    name: `topic ${part} ${topic}`,
    every: TOPIC_SECONDS,
    load,
    view: (data) => [topicHead(topic, part, session), view(data)],
  });
}

function partitionsPart(topic, params) {
  const query = {
    topic,
    page: params.get("page"),
    search: params.get("search"),
    order: params.get("order"),
    problems: params.get("problems"),
  };
  const order = { by: "partition", way: params.get("order") ?? "asc" };
  return {
    load: async (signal) => {
      const [about, partitions] = await Promise.all([
        get("topic", { topic }, signal),
        get("partitions", query, signal),
      ]);
      return { ...about, ...partitions };
    },
    view: ({ topic: about, page, partitions }) => [
      figures(
        figure("Records", count(about.records)),
        figure("Size", bytes(about.bytes), { note: about.bytes === null ? "" : "of the leaders" }),
        figure("Partitions", count(about.partitions)),
        figure("Replicas", count(about.replication)),
        figure("Under-replicated", count(about.under_replicated), { state: about.under_replicated ? "warn" : "" }),
        figure("Without leader", count(about.without_leader), { state: about.without_leader ? "bad" : "" }),
      ),
      h(
        "div",
        { class: "tools" },
        search(params.get("search"), { label: "Number of a partition" }),
        toggle("only unhealthy", "problems", params.get("problems") === "true"),
        pager(page, "partitions"),
      ),
      partitionTable(topic, partitions, order, query.problems),
      page.pages > 1 ? pager(page, "partitions", "below") : null,
    ],
  };
}

function partitionTable(topic, partitions, order, onlyUnhealthy) {
  return table({
    caption: "Partitions",
    rows: partitions,
    order,
    key: (one) => one.partition,
    none: onlyUnhealthy ? "All partitions have a leader and all their replicas." : "There is no such partition.",
    columns: [
      {
        label: "Partition",
        sort: "partition",
        number: true,
        cell: (one) => link(to(["topics", topic, "records"], { partition: one.partition }), one.partition),
      },
      { label: "Leader", number: true, cell: (one) => (one.leader === null ? [badge("bad", "none"), " ", reason(topic, one)] : link(to(["servers", String(one.leader)]), one.leader)) },
      { label: "Term", number: true, cell: (one) => count(one.term) },
      { label: "In sync", cell: (one) => inSync(topic, one) },
      { label: "Start", number: true, cell: (one) => offset(one.start) },
      { label: "End", number: true, cell: (one) => offset(one.end) },
      { label: "Records", number: true, cell: (one) => count(difference(one.end, one.start)) },
      { label: "Size", number: true, cell: (one) => [bytes(one.bytes), one.error ? h("small", {}, one.error) : null] },
    ],
  });
}

const reason = (topic, one) => link(why("partition", topic, one.partition), "Why?");

// Replicas that are not in sync stand behind the others, crossed out and with a word.
function inSync(topic, one) {
  const missing = one.replicas.filter((server) => !one.isr.includes(server));
  return [
    one.isr.join(", ") || "none",
    missing.length ? [" ", badge("warn", `not ${missing.join(", ")}`), " ", one.leader === null ? null : reason(topic, one)] : null,
  ];
}

function settingsPart(topic, params) {
  const only = params.get("search") ?? "";
  return {
    load: (signal) => get("topic", { topic }, signal),
    view: ({ settings: rows }) => [
      h("div", { class: "tools" }, search(only, { label: "Name of a setting" })),
      settings(rows, only),
    ],
  };
}

function groupsPart(topic) {
  return {
    load: (signal) => get("topic_groups", { topic }, signal),
    view: ({ groups, groups_total: total, missing, is_complete: isComplete }) => [
      notes(groups, total, missing, isComplete),
      groups.length || isComplete !== false ? lagTable(groups) : empty("No group was found in time."),
    ],
  };
}

function notes(groups, total, missing = [], isComplete = true) {
  const found = [];
  if (total > groups.length) found.push(`The ${groups.length} groups with the largest lag are shown, of ${count(total)}.`);
  if (!isComplete) found.push("Not all groups could be examined.");
  if (missing.length) found.push(`Groups of servers ${missing.join(", ")} are missing, because they do not answer.`);
  return found.map((words) => h("p", { class: "note" }, words));
}

function lagTable(groups) {
  return table({
    caption: "Consumer groups of this topic",
    rows: groups,
    key: (one) => one.group,
    none: "No consumer group has committed an offset in this topic.",
    columns: [
      { label: "Group", wide: true, cell: (one) => link(to(["groups", one.group]), name(one.group)) },
      { label: "State", cell: (one) => one.state },
      { label: "Lag, records", number: true, cell: (one) => count(one.lag) },
    ],
  });
}

