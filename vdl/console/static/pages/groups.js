// Consumer groups, and one of them: lag over time, members, partitions.

import { get } from "../api.js";
import { Chart } from "../chart.js";
import { h, keep } from "../dom.js";
import { brief, count, counted, duration, offset, short, visible } from "../format.js";
import { live } from "../live.js";
import { to } from "../route.js";
import { badge, figure, figures, head, link, name, ordered, pager, search, section, table } from "../ui.js";
import { why } from "./explain.js";

const LIST_SECONDS = 10;
const GROUP_SECONDS = 5;
const PARTITIONS_IN_LINE = 20;
const STATES = { Stable: "ok", Empty: "off", Dead: "off" };

const state = (words) => badge(STATES[words] ?? "warn", words);

export function showGroups(context) {
  const { params } = context;
  const order = ordered(params, "name");
  const searched = params.get("search");
  const query = { page: params.get("page"), search: searched, sort: order.by, order: order.way };
  return live(context, {
    name: "groups",
    every: LIST_SECONDS,
    load: (signal) => get("groups", query, signal),
    view: ({ page, groups, missing }) => [
      head("Consumer groups"),
      h("div", { class: "tools" }, search(searched, { label: "Part of a name" }), pager(page, "groups")),
      missing.length
        ? h("p", { class: "box warn" }, `Groups of servers ${missing.join(", ")} are missing, because they do not answer.`)
        : null,
      table({
        caption: "Consumer groups",
        rows: groups,
        order,
        key: (one) => one.group,
        none: searched ? "No group has this in its name." : "There are no consumer groups.",
        columns: [
          { label: "Group", sort: "name", wide: true, cell: (one) => link(to(["groups", one.group]), name(one.group)) },
          { label: "State", sort: "state", cell: (one) => state(one.state) },
          { label: "Type", sort: "type", cell: (one) => one.type },
          { label: "Protocol", cell: (one) => visible(one.protocol) || "–" },
        ],
      }),
      page.pages > 1 ? pager(page, "groups", "below") : null,
    ],
  });
}

export function showGroup(context) {
  const group = context.path[1];
  const records = new Chart("Lag in records", [{ label: "records", name: "lag" }], short);
  const time = new Chart("Lag in time", [{ label: "time", name: "seconds" }], duration, brief);
  return live(context, {
    name: `group ${group}`,
    every: GROUP_SECONDS,
    load: async (signal) => {
      const answer = await get("group", { group }, signal);
      const { times, lag, lag_seconds: seconds } = answer.series;
      records.update(times, { lag: lag.map((one) => (one === null ? null : Number(one))) });
      time.update(times, { seconds });
      return answer;
    },
    view: (answer) => [
      head(group, {
        above: [["Consumer groups", to(["groups"])]],
        actions: [
          link(why("lag", group), "Why is it behind?", { class: "button" }),
          link(why("group", group), "Why does it rebalance?", { class: "button" }),
        ],
      }),
      summary(answer),
      h("div", { class: "charts" }, keep(records.node), keep(time.node)),
      section("Members", memberTable(answer)),
      section("Partitions", partitionTable(answer)),
    ],
  });
}

function summary({ group, members_total: members, partitions_total: partitions, lag, lag_seconds: seconds }) {
  return figures(
    figure("State", state(group.state)),
    figure("Type", group.type),
    figure("Lag, records", count(lag)),
    figure("Lag, time", duration(seconds)),
    figure("Members", count(members)),
    figure("Partitions", count(partitions)),
    figure("Coordinator", `Server ${group.coordinator}`, { address: to(["servers", String(group.coordinator)]) }),
    group.assignor ? figure("Assignor", visible(group.assignor)) : null,
    group.epoch === null ? null : figure("Epoch", group.epoch),
  );
}

function memberTable({ members, members_total: total }) {
  return [
    total > members.length ? h("p", { class: "note" }, `${count(members.length)} of ${counted(total, "member")} are shown.`) : null,
    table({
      caption: "Members",
      rows: members,
      key: (one) => one.member,
      none: "The group has no members.",
      columns: [
        { label: "Client", wide: true, cell: (one) => name(one.client || "–") },
        { label: "Address", cell: (one) => visible(one.host.replace(/^\//, "")) },
        { label: "Member", wide: true, cell: (one) => [h("small", {}, name(one.member)), one.instance ? h("small", {}, "instance ", name(one.instance)) : null] },
        { label: "Assigned", wide: true, cell: assigned },
      ],
    }),
  ];
}

function assigned({ assigned: topics }) {
  if (!topics.length) return "–";
  return topics.map(({ topic, partitions }) => {
    const shown = partitions.slice(0, PARTITIONS_IN_LINE).join(", ");
    const left = partitions.length - PARTITIONS_IN_LINE;
    return h("div", {}, link(to(["topics", topic]), name(topic)), `: ${shown}${left > 0 ? ` and ${left} more` : ""}`);
  });
}

function partitionTable({ partitions, partitions_total: total, members }) {
  const clients = new Map(members.map((one) => [one.member, one.client]));
  return [
    total > partitions.length ? h("p", { class: "note" }, `The ${count(partitions.length)} partitions with the largest lag are shown, of ${count(total)}.`) : null,
    table({
      caption: "Partitions",
      rows: partitions,
      key: (one) => `${one.topic}/${one.partition}`,
      none: "The group has no committed offsets.",
      columns: [
        { label: "Topic", wide: true, cell: (one) => link(to(["topics", one.topic]), name(one.topic)) },
        { label: "Partition", number: true, cell: (one) => link(to(["topics", one.topic, "records"], { partition: one.partition, from: one.committed }), one.partition) },
        { label: "Committed", number: true, cell: (one) => offset(one.committed) },
        { label: "End", number: true, cell: (one) => offset(one.end) },
        { label: "Lag, records", number: true, cell: (one) => count(one.lag) },
        { label: "Lag, time", number: true, cell: (one) => duration(one.lag_seconds) },
        { label: "Client", wide: true, cell: (one) => (one.member === null ? "–" : name(clients.get(one.member) || one.member)) },
      ],
    }),
  ];
}
