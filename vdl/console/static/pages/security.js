// Access control lists, users and quotas. Shown only; `vdl acl`, `vdl user` and `vdl quota` change them.

import { get } from "../api.js";
import { h } from "../dom.js";
import { bytesPerSecond, count } from "../format.js";
import { live } from "../live.js";
import { to } from "../route.js";
import { badge, failure, head, name, ordered, pager, search, table, tabs } from "../ui.js";

const SECONDS = 30;
const PARTS = {
  acls: ["Access control", aclTable, "principal"],
  users: ["Users", userTable, null],
  quotas: ["Quotas", quotaTable, null],
};

export function showSecurity(context) {
  const { params } = context;
  const part = Object.hasOwn(PARTS, params.get("part")) ? params.get("part") : "acls";
  const [, view, sort] = PARTS[part];
  const order = sort ? ordered(params, sort) : null;
  const query = {
    page: params.get("page"),
    search: params.get("search"),
    sort: order?.by,
    order: order?.way,
  };
  const top = () => [
    head("Security"),
    tabs("Parts of security", Object.entries(PARTS).map(([key, [words]]) => [words, to(["security"], { part: key }), key === part])),
  ];
  return live(context, {
    name: `security ${part}`,
    every: SECONDS,
    load: async (signal) => {
      try {
        return await get(part, query, signal);
      } catch (error) {
        // The other parts may be there: their links stay.
        if (["forbidden", "bad_request"].includes(error.kind)) return { error };
        throw error;
      }
    },
    view: (answer) => [
      top(),
      answer.error
        ? failure(answer.error)
        : answer.is_enforced === false
          ? openSet()
          : [
              h("div", { class: "tools" }, search(params.get("search"), { label: "Part of a row" }), pager(answer.page, part)),
              view(answer[part], order),
              answer.page.pages > 1 ? pager(answer.page, part, "below") : null,
            ],
    ],
  });
}

// Not an error: a set without logins has no authorizer, either.
function openSet() {
  return h(
    "div",
    { class: "box warn" },
    h("p", {}, "No authorizer is set (", h("code", {}, "security.authorizer"), "): every client may do everything."),
  );
}

function aclTable(rows, order) {
  return table({
    caption: "Access control list",
    rows,
    order,
    none: "There are no such rules.",
    columns: [
      { label: "Principal", sort: "principal", wide: true, cell: (one) => name(one.principal) },
      { label: "May", cell: (one) => badge(one.permission === "allow" ? "ok" : "bad", one.permission) },
      { label: "Operation", cell: (one) => one.operation },
      {
        label: "Resource",
        sort: "resource",
        wide: true,
        cell: (one) => [
          `${one.resource_type} `,
          name(one.resource),
          one.pattern === "prefixed" ? h("span", { class: "tag" }, "and all that begin so") : null,
        ],
      },
      { label: "From", cell: (one) => (one.host === "*" ? "any address" : name(one.host)) },
    ],
  });
}

function userTable(rows) {
  return table({
    caption: "Users",
    rows,
    key: (one) => one.user,
    none: "There are no users with passwords.",
    columns: [
      { label: "User", wide: true, cell: (one) => name(one.user) },
      {
        label: "Login",
        wide: true,
        cell: (one) => one.mechanisms.map((way) => h("div", {}, `${way.mechanism}, ${count(way.iterations)} iterations`)),
      },
    ],
  });
}

function quotaTable(rows) {
  return table({
    caption: "Quotas",
    rows,
    none: "There are no quotas.",
    columns: [
      {
        label: "For",
        wide: true,
        cell: (one) => one.entity.map((part) => h("div", {}, `${part.type} `, part.name === null ? h("em", {}, "all others") : name(part.name))),
      },
      {
        label: "Limit",
        wide: true,
        cell: (one) => one.values.map((limit) => h("div", {}, h("code", {}, limit.name), ` ${amount(limit)}`)),
      },
    ],
  });
}

function amount({ name: what, value }) {
  if (what.endsWith("byte_rate")) return bytesPerSecond(value);
  if (what === "request_percentage") return `${value} %`;
  return what.endsWith("_rate") ? `${count(value)}/s` : count(value);
}
