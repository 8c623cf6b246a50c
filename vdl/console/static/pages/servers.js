// Servers, and one of them with its settings.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, duration, visible } from "../format.js";
import { live } from "../live.js";
import { to } from "../route.js";
import { badge, empty, figure, figures, head, link, search, section, settings, table } from "../ui.js";
import { why } from "./explain.js";

const SECONDS = 5;
const SETTINGS_SECONDS = 30;
const STATES = { up: ["ok", "up"], down: ["bad", "down"], unknown: ["off", "not known"] };

export function showServers(context) {
  return live(context, {
    name: "servers",
    every: SECONDS,
    load: (signal) => get("servers", {}, signal),
    view: ({ servers }) => [head("Servers"), serverTable(servers)],
  });
}

const state = (one) => badge(...(STATES[one.state] ?? ["off", one.state]));
const uptime = (one) => (one.uptime_ms === null ? "–" : duration(Number(one.uptime_ms) / 1000));

export function serverTable(servers) {
  const hasRacks = servers.some((one) => one.rack);
  return table({
    caption: "Servers",
    rows: servers,
    key: (one) => one.id,
    columns: [
      {
        label: "Server",
        cell: (one) => [
          link(to(["servers", String(one.id)]), `Server ${one.id}`),
          one.is_this ? h("span", { class: "tag" }, "this one") : null,
          one.controller ? h("span", { class: "tag" }, "controller") : null,
        ],
      },
      { label: "State", cell: (one) => [state(one), one.reason ? h("small", {}, visible(one.reason)) : null] },
      { label: "Address", wide: true, cell: (one) => h("code", {}, visible(`${one.host}:${one.port}`)) },
      hasRacks ? { label: "Rack", cell: (one) => visible(one.rack) || "–" } : null,
      { label: "Replicas", number: true, cell: (one) => count(one.replicas) },
      { label: "Leading", number: true, cell: (one) => count(one.leading) },
      { label: "Up for", number: true, cell: uptime },
      { label: "Version", cell: (one) => one.version ?? "–" },
    ].filter(Boolean),
  });
}

export function showServer(context) {
  const { path, params } = context;
  const only = params.get("setting") ?? "";
  return live(context, {
    name: `server ${path[1]}`,
    every: SETTINGS_SECONDS,
    load: (signal) => get("server", { server: path[1] }, signal),
    view: ({ server, settings: rows, settings_missing: missing }) => [
      head(`Server ${server.id}`, {
        above: [["Servers", to(["servers"])]],
        actions: [link(why("server", server.id), "What is wrong with it?", { class: "button" })],
      }),
      figures(
        figure("State", state(server), { note: visible(server.reason) }),
        figure("Address", visible(`${server.host}:${server.port}`)),
        server.rack ? figure("Rack", visible(server.rack)) : null,
        figure("Replicas", count(server.replicas)),
        figure("Leading", count(server.leading)),
        figure("Up for", uptime(server)),
        figure("Version", server.version ?? "–"),
      ),
      section(
        "Settings",
        rows === null
          ? empty(`The settings cannot be shown: ${visible(missing)}.`)
          : [h("div", { class: "tools" }, search(only, { label: "Name of a setting", param: "setting" })), settings(rows, only)],
      ),
    ],
  });
}
